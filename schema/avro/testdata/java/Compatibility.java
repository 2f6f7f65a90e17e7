import java.io.*;
import java.nio.charset.StandardCharsets;
import org.apache.avro.*;
import org.apache.avro.generic.*;
import org.apache.avro.io.*;

/**
 * Reads lines WRITER TAB READER of schemas, with examples of the writer behind them, and prints
 * what SchemaCompatibility finds, and the examples that the reader reads or the writer cannot write.
 */
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
                for (int i = 2; i < pair.length; i++) {
                    verdict += example(writer, reader, pair[i]);
                }
            } catch (RuntimeException e) {
                verdict = "INVALID " + e.getClass().getSimpleName() + " " + String.valueOf(e.getMessage()).replace('\n', ' ');
            }
            out.append(verdict).append('\n');
        }
        System.out.print(out);
    }

    private static String example(Schema writer, Schema reader, String text) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try {
            Object datum = new GenericDatumReader<Object>(writer).read(null, DecoderFactory.get().jsonDecoder(writer, text));
            Encoder out = EncoderFactory.get().binaryEncoder(bytes, null);
            new GenericDatumWriter<Object>(writer).write(datum, out);
            out.flush();
        } catch (IOException | RuntimeException e) {
            return "\tnot written " + text + " " + e;
        }
        try {
            new GenericDatumReader<Object>(writer, reader).read(null, DecoderFactory.get().binaryDecoder(bytes.toByteArray(), null));
        } catch (IOException | RuntimeException e) {
            return "";
        }
        return "\tread " + text;
    }
}
