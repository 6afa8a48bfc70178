import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** A record, plain or in a transaction, as soon as a broker that is just starting takes it. */
final class First {
    static void run(JsonNode request, ObjectNode answer) throws Exception {
        boolean inTransaction = request.get("transaction").asBoolean();
        Properties settings = Load.producer(request, inTransaction ? "bench-" + UUID.randomUUID() : null);
        settings.put("reconnect.backoff.ms", "5");
        settings.put("reconnect.backoff.max.ms", "10");
        settings.put("retry.backoff.ms", "5");
        settings.put("retry.backoff.max.ms", "10");
        ProducerRecord<byte[], byte[]> record =
                new ProducerRecord<>(request.get("topic").asText(), 0, null, new byte[1024]);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            if (inTransaction) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            producer.send(record).get(120, TimeUnit.SECONDS);
            if (inTransaction) {
                producer.commitTransaction();
            }
            // Of the day, as the one who started the broker reads the same clock.
            answer.put("at_ms", System.currentTimeMillis());
        }
    }

    private First() {}
}
