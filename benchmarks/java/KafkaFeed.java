import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Sends the clock's nanoseconds to a Kafka topic, evenly: arguments are the broker, the topic, messages a second and
 * seconds. A pause of the machine is made up for at once. Status 1 when a message was not acknowledged.
 */
public final class KafkaFeed {
    private static final String PADDING = "x".repeat(81);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("acks", "all");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        long rate = Long.parseLong(arguments[2]);
        long seconds = Long.parseLong(arguments[3]);
        AtomicLong failed = new AtomicLong();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            long begun = System.nanoTime();
            for (long sent = 0; sent < rate * seconds; sent++) {
                long due = begun + sent * 1_000_000_000L / rate;
                long early = due - System.nanoTime();
                if (early > 0) {
                    Thread.sleep(early / 1_000_000L, (int) (early % 1_000_000L));
                }
                long now = System.currentTimeMillis() * 1_000_000L;
                String body = String.format("%019d", now) + PADDING;
                producer.send(new ProducerRecord<>(arguments[1], "d" + sent % 16, body), (place, error) -> {
                    if (error != null) {
                        failed.incrementAndGet();
                    }
                });
            }
        }
        System.exit(failed.get() == 0 ? 0 : 1);
    }
}
