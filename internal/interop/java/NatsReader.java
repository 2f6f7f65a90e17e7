import io.nats.client.*;
import io.nats.client.api.OrderedConsumerConfiguration;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;

/** Reads messages of a stream and prints their headers, name TAB Base64, and "payload TAB Base64" behind them. */
class NatsReader {
    static String base64(byte[] b) { return Base64.getEncoder().encodeToString(b); }

    public static void main(String[] args) throws Exception {
        // Where the connection is lost, the client's calls do not come back.
        Thread watchdog = new Thread(() -> {
            try { Thread.sleep(120_000); } catch (InterruptedException e) { return; }
            System.err.println("nothing was read for 120 s");
            Runtime.getRuntime().halt(1);
        });
        watchdog.setDaemon(true);
        watchdog.start();
        Options options = new Options.Builder().server(args[0]).maxReconnects(0).errorListener(new ErrorListener() {
            public void exceptionOccurred(Connection c, Exception e) {
                System.err.println("exception: " + e);
                Runtime.getRuntime().halt(1);
            }
            public void errorOccurred(Connection c, String e) { System.err.println("error: " + e); }
        }).build();
        try (Connection nc = Nats.connect(options)) {
            OrderedConsumerContext consumer = nc.getStreamContext(args[1]).createOrderedConsumer(new OrderedConsumerConfiguration());
            for (int left = Integer.parseInt(args[2]); left > 0; left--) {
                Message m = consumer.next(Duration.ofSeconds(100));
                if (m == null) throw new Exception("no message; the connection is " + nc.getStatus());
                for (String name : m.getHeaders().keySet())
                    for (String value : m.getHeaders().get(name))
                        System.out.println(name + "\t" + base64(value.getBytes(StandardCharsets.UTF_8)));
                System.out.println("payload\t" + base64(m.getData()));
            }
            System.out.flush();
            Runtime.getRuntime().halt(0); // closing waits for the consumer's heartbeats
        }
    }
}
