import java.io.*;
import java.nio.charset.StandardCharsets;
import org.apache.avro.*;

/** Reads lines WRITER TAB READER of schemas and prints what SchemaCompatibility finds. */
public class Compatibility {
    public static void main(String[] args) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        for (String line; (line = in.readLine()) != null; ) {
            String[] pair = line.split("\t");
            String verdict;
            try {
                Schema writer = new Schema.Parser().parse(pair[0]);
                Schema reader = new Schema.Parser().parse(pair[1]);
                verdict = SchemaCompatibility.checkReaderWriterCompatibility(reader, writer).getResult().getCompatibility().name();
            } catch (RuntimeException e) {
                verdict = "INVALID " + e.getClass().getSimpleName() + " " + String.valueOf(e.getMessage()).replace('\n', ' ');
            }
            out.append(verdict).append('\n');
        }
        System.out.print(out);
    }
}
