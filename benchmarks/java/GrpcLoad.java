import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * RocketMQ's gRPC client as a load: arguments are the proxy's address and the topic, which must exist. Reads phases from
 * standard input, one a line, and answers each with `done MESSAGES SECONDS`:
 *
 *   send THREADS MESSAGES       synchronous sends with a key, a tag and a user property
 *   simple THREADS MESSAGES     a simple consumer of a new group receives 32 at a time and acknowledges each message
 *   push MESSAGES               a push consumer of a new group reads that many
 *
 * An exception ends the program with status 1.
 */
public final class GrpcLoad {
    private static final byte[] BODY = new byte[256];
    private static final long DEADLINE_S = 240;
    private static final int RECEIVED = 32;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, FilterExpression> ALL = new java.util.HashMap<>();

    private static ClientConfiguration config;
    private static String topic;
    private static Producer producer;

    private interface Work {
        int run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        config = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        topic = arguments[1];
        ALL.put(topic, FilterExpression.SUB_ALL);
        producer = PROVIDER.newProducerBuilder().setClientConfiguration(config).setTopics(topic).build();
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = input.readLine()) != null; ) {
            String[] words = line.trim().split(" ");
            long begun = System.nanoTime();
            long messages = run(words);
            System.out.println("done " + messages + " " + (System.nanoTime() - begun) / 1e9);
        }
        System.exit(0);
    }

    private static long run(String[] words) throws Exception {
        switch (words[0]) {
            case "send":
                return send(Integer.parseInt(words[1]), Long.parseLong(words[2]));
            case "simple":
                return simple(Integer.parseInt(words[1]), Long.parseLong(words[2]));
            case "push":
                return push(Long.parseLong(words[1]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static long send(int threads, long messages) throws Exception {
        AtomicLong begun = new AtomicLong();
        return together(threads, messages, () -> {
            long number = begun.incrementAndGet();
            if (number > messages) {
                return 0;
            }
            Message message = PROVIDER.newMessageBuilder().setTopic(topic).setBody(BODY).setTag("tag")
                .setKeys("key" + number).addProperty("number", String.valueOf(number)).build();
            producer.send(message);
            return 1;
        });
    }

    private static long simple(int threads, long messages) throws Exception {
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(config)
            .setConsumerGroup("load_" + System.nanoTime()).setAwaitDuration(Duration.ofSeconds(2))
            .setSubscriptionExpressions(ALL).build()) {
            return together(threads, messages, () -> {
                List<MessageView> found = consumer.receive(RECEIVED, Duration.ofSeconds(60));
                CompletableFuture.allOf(found.stream().map(consumer::ackAsync).toArray(CompletableFuture[]::new)).get();
                return found.size();
            });
        }
    }

    /** Each thread repeats the work until so many messages are done. */
    private static long together(int threads, long messages, Work work) throws Exception {
        AtomicLong done = new AtomicLong();
        CountDownLatch open = new CountDownLatch(threads);
        for (int number = 0; number < threads; number++) {
            new Thread(() -> {
                try {
                    while (done.get() < messages) {
                        done.addAndGet(work.run());
                    }
                    open.countDown();
                } catch (Throwable error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            }).start();
        }
        if (!open.await(DEADLINE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("done " + done + " of " + messages);
        }
        return done.get();
    }

    private static long push(long messages) throws Exception {
        AtomicLong seen = new AtomicLong();
        CountDownLatch open = new CountDownLatch(1);
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(config)
            .setConsumerGroup("load_" + System.nanoTime()).setSubscriptionExpressions(ALL)
            .setMessageListener(message -> {
                if (seen.incrementAndGet() >= messages) {
                    open.countDown();
                }
                return ConsumeResult.SUCCESS;
            }).build()) {
            if (!open.await(DEADLINE_S, TimeUnit.SECONDS)) {
                throw new IllegalStateException("received " + seen + " of " + messages);
            }
            return seen.get();
        }
    }
}
