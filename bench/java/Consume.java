import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** All records of some partitions from the beginning; seconds, from the first poll, and bytes of their values. */
final class Consume {
    static void run(JsonNode request, ObjectNode answer) throws Exception {
        String topic = request.get("topic").asText();
        long wanted = request.get("records").asLong();
        List<TopicPartition> assigned = new ArrayList<>();
        request.get("read").forEach(partition -> assigned.add(new TopicPartition(topic, partition.asInt())));
        long count = 0;
        long bytes = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(Load.consumer(request))) {
            consumer.assign(assigned);
            consumer.seekToBeginning(assigned);
            assigned.forEach(consumer::position);
            long began = System.nanoTime();
            long deadline = began + 600_000_000_000L;
            while (count < wanted) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(1000));
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    bytes += record.value().length;
                }
                count += records.count();
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("read " + count + " of " + wanted + " in ten minutes");
                }
            }
            answer.put("seconds", (System.nanoTime() - began) / 1e9);
        }
        answer.put("records", count).put("bytes", bytes);
    }

    private Consume() {}
}
