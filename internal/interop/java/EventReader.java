import io.cloudevents.CloudEvent;
import io.cloudevents.jackson.JsonFormat;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/** Reads CloudEvents in JSON, one a line, and prints subject, data content type and data of each in Base64, or the error. */
class EventReader {
    static String base64(byte[] b) { return Base64.getEncoder().encodeToString(b); }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            CloudEvent e = new JsonFormat().deserialize(line.getBytes(StandardCharsets.UTF_8));
            System.out.println("content-type\t" + base64(e.getDataContentType().getBytes(StandardCharsets.UTF_8)));
            System.out.println("payload\t" + base64(e.getData() == null ? new byte[0] : e.getData().toBytes()));
        }
    }
}
