import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * What RocketMQ's Java gRPC client can do with a server, one scenario after the other, each with a topic of its name,
 * which must exist. Arguments: endpoint, scenarios. Prints `NAME ok` or `NAME failed: REASON` for each. With the system
 * properties `key` and `secret` calls are signed, with `ssl` connections use TLS.
 */
public final class GrpcFeatures {
    private static final long DEADLINE_MS = 40_000;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration config;

    private interface Scenario {
        void run(String topic) throws Exception;
    }

    private static final Map<String, Scenario> SCENARIOS = Map.of(
        "simple", GrpcFeatures::simple,
        "sql", GrpcFeatures::sql,
        "push", GrpcFeatures::push,
        "fifo", GrpcFeatures::fifo,
        "delayed", GrpcFeatures::delayed,
        "transactions", GrpcFeatures::transactions,
        "priority", GrpcFeatures::priority,
        "lite", GrpcFeatures::lite,
        "dead", GrpcFeatures::dead);

    public static void main(String[] arguments) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(arguments[0])
            .enableSsl(Boolean.getBoolean("ssl")).setRequestTimeout(Duration.ofSeconds(10));
        if (System.getProperty("key") != null) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(System.getProperty("key"), System.getProperty("secret")));
        }
        config = builder.build();
        for (int at = 1; at < arguments.length; at++) {
            String name = arguments[at];
            try {
                SCENARIOS.get(name).run(name);
                System.out.println(name + " ok");
            } catch (Throwable failure) {
                failure.printStackTrace();
                System.out.println(name + " failed: " + failure);
            }
        }
        System.exit(0);
    }

    private static ProducerBuilder producing(String topic) {
        return PROVIDER.newProducerBuilder().setClientConfiguration(config).setTopics(topic);
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static SimpleConsumer consuming(String topic, FilterExpression filter) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(config).setConsumerGroup(topic + "-readers")
            .setAwaitDuration(Duration.ofSeconds(5)).setSubscriptionExpressions(Map.of(topic, filter)).build();
    }

    private static List<MessageView> received(SimpleConsumer consumer, int count) throws Exception {
        List<MessageView> found = new ArrayList<>();
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (found.size() < count && System.currentTimeMillis() < deadline) {
            for (MessageView message : consumer.receive(16, Duration.ofSeconds(15))) {
                consumer.ack(message);
                found.add(message);
            }
        }
        return found;
    }

    private static void check(boolean holds, Object shown) {
        if (!holds) {
            throw new IllegalStateException(String.valueOf(shown));
        }
    }

    private static void simple(String topic) throws Exception {
        try (Producer producer = producing(topic).build();
             SimpleConsumer consumer = consuming(topic, FilterExpression.SUB_ALL)) {
            Message sent = message(topic, "body").setTag("a").setKeys("k1", "k2").addProperty("color", "red").build();
            SendReceipt receipt = producer.send(sent);
            MessageView got = received(consumer, 1).get(0);
            check(got.getMessageId().equals(receipt.getMessageId()), got);
            check(text(got).equals("body") && got.getTag().get().equals("a") && got.getKeys().size() == 2, got);
            check(got.getProperties().equals(Collections.singletonMap("color", "red")), got);
            check(got.getDeliveryAttempt() == 1, got);
            producer.sendAsync(message(topic, "async").build()).get(10, TimeUnit.SECONDS);
            MessageView other = consumer.receive(1, Duration.ofSeconds(15)).get(0);
            consumer.changeInvisibleDuration(other, Duration.ofSeconds(20));
            consumer.ack(other);
        }
    }

    private static void sql(String topic) throws Exception {
        FilterExpression filter = new FilterExpression("n > 1", FilterExpressionType.SQL92);
        try (Producer producer = producing(topic).build(); SimpleConsumer consumer = consuming(topic, filter)) {
            producer.send(message(topic, "one").addProperty("n", "1").build());
            producer.send(message(topic, "two").addProperty("n", "2").build());
            check(text(received(consumer, 1).get(0)).equals("two"), "the filter");
        }
    }

    private static PushConsumer pushing(String topic, MessageListener listener) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(config).setConsumerGroup(topic + "-pushed")
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).setMessageListener(listener).build();
    }

    private static void push(String topic) throws Exception {
        ConcurrentLinkedQueue<String> bodies = new ConcurrentLinkedQueue<>();
        CountDownLatch complete = new CountDownLatch(20);
        MessageListener listener = message -> {
            if (text(message).equals("7") && message.getDeliveryAttempt() == 1) {
                return ConsumeResult.FAILURE;
            }
            bodies.add(text(message));
            complete.countDown();
            return ConsumeResult.SUCCESS;
        };
        try (Producer producer = producing(topic).build(); PushConsumer consumer = pushing(topic, listener)) {
            for (int number = 0; number < 20; number++) {
                producer.send(message(topic, String.valueOf(number)).build());
            }
            check(complete.await(DEADLINE_MS, TimeUnit.MILLISECONDS), bodies);
            check(bodies.stream().distinct().count() == 20, bodies);
        }
    }

    /** The group consumes in order: what fails is tried again before the next. */
    private static void fifo(String topic) throws Exception {
        ConcurrentLinkedQueue<String> bodies = new ConcurrentLinkedQueue<>();
        CountDownLatch complete = new CountDownLatch(1);
        boolean[] failed = new boolean[1];
        MessageListener listener = message -> {
            bodies.add(text(message));
            if (text(message).equals("2") && !failed[0]) {
                failed[0] = true;
                return ConsumeResult.FAILURE;
            }
            if (text(message).equals("9")) {
                complete.countDown();
            }
            return ConsumeResult.SUCCESS;
        };
        try (Producer producer = producing(topic).build(); PushConsumer consumer = pushing(topic, listener)) {
            for (int number = 0; number < 10; number++) {
                producer.send(message(topic, String.valueOf(number)).setMessageGroup("g").build());
            }
            check(complete.await(DEADLINE_MS, TimeUnit.MILLISECONDS), bodies);
            check(bodies.toString().equals("[0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9]"), bodies);
        }
    }

    private static void delayed(String topic) throws Exception {
        try (Producer producer = producing(topic).build();
             SimpleConsumer consumer = consuming(topic, FilterExpression.SUB_ALL)) {
            long due = System.currentTimeMillis() + 3_000;
            SendReceipt receipt = producer.send(message(topic, "recalled").setDeliveryTimestamp(due).build());
            producer.send(message(topic, "delivered").setDeliveryTimestamp(due).build());
            producer.recallMessage(topic, receipt.getRecallHandle());
            List<MessageView> found = received(consumer, 1);
            check(text(found.get(0)).equals("delivered") && System.currentTimeMillis() >= due, found);
        }
    }

    private static void transactions(String topic) throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        ProducerBuilder builder = producing(topic).setTransactionChecker(message -> {
            asked.countDown();
            return TransactionResolution.COMMIT;
        });
        try (Producer producer = builder.build(); SimpleConsumer consumer = consuming(topic, FilterExpression.SUB_ALL)) {
            for (String outcome : List.of("commit", "roll back", "leave")) {
                Transaction transaction = producer.beginTransaction();
                producer.send(message(topic, outcome).build(), transaction);
                if (outcome.equals("commit")) {
                    transaction.commit();
                } else if (outcome.equals("roll back")) {
                    transaction.rollback();
                }
            }
            check(asked.await(DEADLINE_MS, TimeUnit.MILLISECONDS), "no check");
            List<String> bodies = new ArrayList<>();
            received(consumer, 2).forEach(message -> bodies.add(text(message)));
            Collections.sort(bodies);
            check(bodies.toString().equals("[commit, leave]"), bodies);
        }
    }

    /** Messages that are there before the consumer: those of higher priority come first. */
    private static void priority(String topic) throws Exception {
        try (Producer producer = producing(topic).build()) {
            for (int number = 0; number < 4; number++) {
                producer.send(message(topic, String.valueOf(number)).setPriority(1 + number % 2).build());
            }
        }
        try (SimpleConsumer consumer = consuming(topic, FilterExpression.SUB_ALL)) {
            List<MessageView> found = received(consumer, 4);
            List<String> bodies = new ArrayList<>();
            found.forEach(message -> bodies.add(text(message)));
            check(List.of("1", "3").equals(bodies.subList(0, 2).stream().sorted().toList()), bodies);
        }
    }

    /** A lite topic that the consumer subscribes to, in order, with one failure; another one it does not get. */
    private static void lite(String topic) throws Exception {
        ConcurrentLinkedQueue<String> bodies = new ConcurrentLinkedQueue<>();
        CountDownLatch complete = new CountDownLatch(4);
        MessageListener listener = message -> {
            bodies.add(text(message));
            complete.countDown();
            boolean fails = text(message).equals("1") && message.getDeliveryAttempt() == 1;
            return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        };
        try (Producer producer = producing(topic).build();
             LitePushConsumer consumer = PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(config)
                 .setConsumerGroup(topic + "-pushed").bindTopic(topic).setMessageListener(listener).build()) {
            consumer.subscribeLite("s-1");
            for (int number = 0; number < 3; number++) {
                producer.send(message(topic, "other").setLiteTopic("s-2").build());
                producer.send(message(topic, String.valueOf(number)).setLiteTopic("s-1").build());
            }
            check(complete.await(DEADLINE_MS, TimeUnit.MILLISECONDS), bodies);
            check(bodies.toString().equals("[0, 1, 1, 2]"), bodies);
        }
    }

    /** The group tries twice: what always fails is a dead letter then, which the test looks for. */
    private static void dead(String topic) throws Exception {
        CountDownLatch tried = new CountDownLatch(2);
        MessageListener listener = message -> {
            tried.countDown();
            return ConsumeResult.FAILURE;
        };
        try (Producer producer = producing(topic).build(); PushConsumer consumer = pushing(topic, listener)) {
            producer.send(message(topic, "never").build());
            check(tried.await(DEADLINE_MS, TimeUnit.MILLISECONDS), tried);
            Thread.sleep(8_000);
        }
    }
}
