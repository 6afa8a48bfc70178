import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** From the commit call to the record in the hands of a waiting read_committed consumer, in microseconds. */
final class EndToEnd {
    private record Seen(long turn, long nanos) {}

    static void run(JsonNode request, ObjectNode answer) throws Exception {
        String topic = request.get("topic").asText();
        int warmup = request.get("warmup").asInt();
        int turns = request.get("turns").asInt();
        LinkedBlockingQueue<Seen> seen = new LinkedBlockingQueue<>();
        AtomicBoolean stop = new AtomicBoolean();
        Thread reader = new Thread(() -> read(request, topic, seen, stop));
        reader.start();
        ArrayNode micros = answer.putArray("end_to_end");
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(Load.producer(request, "bench-" + UUID.randomUUID()))) {
            producer.initTransactions();
            for (long turn = -warmup; turn < turns; turn++) {
                byte[] value = new byte[request.path("record_bytes").asInt(1024)];
                ByteBuffer.wrap(value).putLong(turn);
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, value));
                long began = System.nanoTime();
                producer.commitTransaction();
                Seen record = seen.poll(60, TimeUnit.SECONDS);
                if (record == null || record.turn != turn) {
                    throw new IllegalStateException("turn " + turn + " met " + record);
                }
                if (turn >= 0) {
                    micros.add((record.nanos - began) / 1000);
                }
            }
        } finally {
            stop.set(true);
            reader.join();
        }
    }

    private static void read(JsonNode request, String topic, LinkedBlockingQueue<Seen> seen, AtomicBoolean stop) {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(Load.consumer(request))) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            while (!stop.get()) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    seen.add(new Seen(ByteBuffer.wrap(record.value()).getLong(), System.nanoTime()));
                }
            }
        }
    }

    private EndToEnd() {}
}
