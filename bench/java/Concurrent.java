import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Many producers, each with a thread of its own, transactions back to back; those that end in the counted time count. */
final class Concurrent {
    static void run(JsonNode request, ObjectNode answer) throws Exception {
        int producers = request.get("producers").asInt();
        long warmupNanos = (long) (request.get("warmup_s").asDouble() * 1e9);
        long countedNanos = (long) (request.get("seconds").asDouble() * 1e9);
        List<KafkaProducer<byte[], byte[]>> open = new ArrayList<>();
        ExecutorService threads = Executors.newFixedThreadPool(producers);
        try {
            for (int number = 0; number < producers; number++) {
                KafkaProducer<byte[], byte[]> producer =
                        new KafkaProducer<>(Load.producer(request, "bench-" + UUID.randomUUID()));
                open.add(producer);
            }
            List<Future<?>> ready = new ArrayList<>();
            open.forEach(producer -> ready.add(threads.submit(producer::initTransactions)));
            for (Future<?> one : ready) {
                one.get();
            }
            long from = System.nanoTime() + warmupNanos;
            long until = from + countedNanos;
            List<Future<List<Long>>> running = new ArrayList<>();
            for (int number = 0; number < producers; number++) {
                int own = number;
                running.add(threads.submit(() -> one(request, open.get(own), own, from, until)));
            }
            ArrayNode micros = answer.putArray("txn");
            for (Future<List<Long>> one : running) {
                one.get().forEach(micros::add);
            }
            answer.put("per_second", micros.size() / (countedNanos / 1e9));
        } finally {
            threads.shutdownNow();
            open.forEach(producer -> producer.close());
        }
    }

    private static List<Long> one(
            JsonNode request, KafkaProducer<byte[], byte[]> producer, int number, long from, long until) {
        String topic = request.get("topic").asText();
        int partitions = request.get("partitions").asInt();
        int width = request.get("width").asInt();
        byte[] value = new byte[request.path("record_bytes").asInt(1024)];
        List<Long> taken = new ArrayList<>();
        for (long began = System.nanoTime(); began < until; ) {
            producer.beginTransaction();
            for (int part = 0; part < width; part++) {
                producer.send(new ProducerRecord<>(topic, (number * width + part) % partitions, null, value));
            }
            producer.commitTransaction();
            long now = System.nanoTime();
            if (began >= from && now <= until) {
                taken.add((now - began) / 1000);
            }
            began = now;
        }
        return taken;
    }

    private Concurrent() {}
}
