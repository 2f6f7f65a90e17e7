// Places orders: an order and its message are one transaction.
using System.Text.Json;
using Npgsql;

await using var source = NpgsqlDataSource.Create(Environment.GetEnvironmentVariable("DATABASE_URL")!);
await using var connection = await source.OpenConnectionAsync();
foreach (var order in args)
{
    await PlaceOrder(connection, order, "book");
}

static async Task PlaceOrder(NpgsqlConnection connection, string order, string item)
{
    // Disposed without a commit, the transaction is rolled back: both rows or none.
    await using var transaction = await connection.BeginTransactionAsync();
    await using var insert = new NpgsqlCommand("INSERT INTO orders (id, item) VALUES ($1, $2)", connection, transaction);
    insert.Parameters.AddWithValue(order);
    insert.Parameters.AddWithValue(item);
    await insert.ExecuteNonQueryAsync();

    await using var enqueue = new NpgsqlCommand(
        "INSERT INTO postrider.outbox (topic, key, type, payload, content_type) VALUES ('orders', $1, 'order.placed', $2, 'application/json')",
        connection, transaction);
    enqueue.Parameters.AddWithValue(order);
    enqueue.Parameters.AddWithValue(JsonSerializer.SerializeToUtf8Bytes(new { order, item }));
    await enqueue.ExecuteNonQueryAsync();

    await transaction.CommitAsync();
}
