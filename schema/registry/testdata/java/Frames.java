import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.avro.*;
import org.apache.avro.generic.*;

/** Prints what Apicurio's deserializer reads of a frame, and writes a frame of its own: both in Confluent's form. */
public class Frames {
    public static void main(String[] args) throws Exception {
        Map<String, Object> conf = new HashMap<>();
        conf.put("apicurio.registry.url", args[0]);
        conf.put("apicurio.registry.as-confluent", true);
        conf.put("apicurio.registry.use-id", "contentId");
        conf.put("apicurio.registry.find-latest", true);
        conf.put("apicurio.registry.auto-register", false);
        var in = new io.apicurio.registry.serde.avro.AvroKafkaDeserializer<Object>();
        in.configure(conf, false);
        System.out.println(in.deserialize("orders", HexFormat.of().parseHex(args[1])));
        var out = new io.apicurio.registry.serde.avro.AvroKafkaSerializer<Object>();
        out.configure(conf, false);
        Schema s = new Schema.Parser().parse(args[2]);
        GenericRecord r = new GenericData.Record(s);
        r.put("qty", 42);
        System.out.println(HexFormat.of().formatHex(out.serialize("orders", r)));
    }
}
