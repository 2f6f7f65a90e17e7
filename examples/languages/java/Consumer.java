import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

/**
 * Makes one invoice per order, however often the order's message comes.
 *
 * <p>A line on standard input stands for a delivery of your broker, the line that is printed for its acknowledgement.
 */
public class Consumer {
    record Message(String id, String topic, String type, String key, String payload) {}

    static void handle(Connection conn, Message m) throws SQLException {
        try (var claim = conn.prepareStatement("SELECT postrider.claim(?, ?, ?, ?)");
                var insert = conn.prepareStatement("INSERT INTO invoice (consumer, order_id) VALUES ('billing-java', ?)")) {
            claim.setString(1, "billing-java");
            claim.setString(2, m.id());
            claim.setString(3, m.topic());
            claim.setString(4, m.type());
            var row = claim.executeQuery();
            row.next();
            if (row.getBoolean(1)) { // no transaction before this one has had the message
                insert.setString(1, m.key());
                insert.executeUpdate();
            }
            conn.commit();
        } catch (SQLException | RuntimeException e) {
            conn.rollback(); // the claim too
            throw e;
        }
    }

    public static void main(String[] args) throws Exception {
        try (var conn = DriverManager.getConnection(System.getenv("DATABASE_URL"));
                var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            conn.setAutoCommit(false);
            for (String line; (line = in.readLine()) != null; ) {
                String[] f = line.split("\t", -1);
                handle(conn, new Message(f[0], f[1], f[2], f[3], f[4]));
                System.out.println("ack " + f[0]); // only now: the effect is committed
            }
        }
    }
}
