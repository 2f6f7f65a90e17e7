// Makes one invoice per order, however often the order's message comes.
// A line on standard input stands for a delivery of your broker, the line that is printed for its acknowledgement.
using Npgsql;

await using var source = NpgsqlDataSource.Create(Environment.GetEnvironmentVariable("DATABASE_URL")!);
await using var connection = await source.OpenConnectionAsync();
while (await Console.In.ReadLineAsync() is { } line)
{
    var f = line.Split('\t');
    await Handle(connection, new Message(f[0], f[1], f[2], f[3], f[4]));
    Console.WriteLine("ack " + f[0]); // only now: the effect is committed
}

static async Task Handle(NpgsqlConnection connection, Message m)
{
    // Disposed without a commit, the transaction is rolled back, and the claim with it.
    await using var transaction = await connection.BeginTransactionAsync();
    await using var claim = new NpgsqlCommand("SELECT postrider.claim($1, $2, $3, $4)", connection, transaction);
    claim.Parameters.AddWithValue("billing-csharp");
    claim.Parameters.AddWithValue(m.Id);
    claim.Parameters.AddWithValue(m.Topic);
    claim.Parameters.AddWithValue(m.Type);
    if (await claim.ExecuteScalarAsync() is true) // no transaction before this one has had the message
    {
        await using var insert = new NpgsqlCommand("INSERT INTO invoice (consumer, order_id) VALUES ('billing-csharp', $1)", connection, transaction);
        insert.Parameters.AddWithValue(m.Key);
        await insert.ExecuteNonQueryAsync();
    }
    await transaction.CommitAsync();
}

record Message(string Id, string Topic, string Type, string Key, string Payload);
