import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

/** Places orders: an order and its message are one transaction. */
public class Writer {
    static void placeOrder(Connection conn, String order, String item) throws SQLException {
        try (var insert = conn.prepareStatement("INSERT INTO orders (id, item) VALUES (?, ?)");
                var enqueue = conn.prepareStatement("""
                        INSERT INTO postrider.outbox (topic, key, type, payload, content_type)
                        VALUES ('orders', ?, 'order.placed', ?, 'application/json')""")) {
            insert.setString(1, order);
            insert.setString(2, item);
            insert.executeUpdate();
            enqueue.setString(1, order);
            // A JSON library in your program; these two need no escapes.
            enqueue.setBytes(2, "{\"order\":\"%s\",\"item\":\"%s\"}".formatted(order, item).getBytes(StandardCharsets.UTF_8));
            enqueue.executeUpdate();
            conn.commit(); // both rows or none
        } catch (SQLException | RuntimeException e) {
            conn.rollback();
            throw e;
        }
    }

    public static void main(String[] orders) throws SQLException {
        try (var conn = DriverManager.getConnection(System.getenv("DATABASE_URL"))) {
            conn.setAutoCommit(false);
            for (String order : orders) {
                placeOrder(conn, order, "book");
            }
        }
    }
}
