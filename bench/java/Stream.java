import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Records one after the other, spread over all partitions, to fill topics; in transactions of so many if asked. */
final class Stream {
    static void run(JsonNode request, ObjectNode answer) throws Exception {
        String topic = request.get("topic").asText();
        int partitions = request.get("partitions").asInt();
        long records = request.get("records").asLong();
        long perTransaction = request.path("per_transaction").asLong(0);
        byte[] value = new byte[request.path("record_bytes").asInt(1024)];
        new Random(7).nextBytes(value);
        AtomicReference<Exception> failure = new AtomicReference<>();
        String id = perTransaction > 0 ? "bench-" + UUID.randomUUID() : null;
        long began;
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(Load.producer(request, id))) {
            if (id != null) {
                producer.initTransactions();
            }
            began = System.nanoTime();
            for (long sent = 0; sent < records; sent++) {
                if (id != null && sent % perTransaction == 0) {
                    if (sent > 0) {
                        producer.commitTransaction();
                    }
                    producer.beginTransaction();
                }
                producer.send(new ProducerRecord<>(topic, (int) (sent % partitions), null, value), (metadata, error) -> {
                    if (error != null) {
                        failure.set(error);
                    }
                });
            }
            if (id != null) {
                producer.commitTransaction();
            }
            producer.flush();
            answer.put("seconds", (System.nanoTime() - began) / 1e9);
        }
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    private Stream() {}
}
