import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * Consumes slowly with RocketMQ's own gRPC client until a line comes on standard input. Arguments: endpoint, topic, group,
 * milliseconds a message, and `simple` or `push`. Prints `consumed BODY TIME-MS` for each message that is acknowledged, or
 * was given to the listener, and `refused REASON` for each call that fails. A simple consumer changes the invisible time of
 * a message whose body ends in 7 before it acknowledges it; a listener fails with it at its first delivery.
 */
public final class ActingReader {
    private static int pauseMs;

    private ActingReader() {
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration config = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(3)).build();
        pauseMs = Integer.parseInt(arguments[3]);
        Map<String, FilterExpression> topics = Collections.singletonMap(arguments[1], FilterExpression.SUB_ALL);
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        if (arguments[4].equals("push")) {
            provider.newPushConsumerBuilder().setClientConfiguration(config).setConsumerGroup(arguments[2])
                .setSubscriptionExpressions(topics).setConsumptionThreadCount(1).setMaxCacheMessageCount(2)
                .setMessageListener(ActingReader::consume).build();
        } else {
            SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(config)
                .setConsumerGroup(arguments[2]).setAwaitDuration(Duration.ofSeconds(2))
                .setSubscriptionExpressions(topics).build();
            Thread reader = new Thread(() -> read(consumer));
            reader.setDaemon(true);
            reader.start();
        }
        System.out.println("started");
        System.out.flush();
        System.in.read();
        System.exit(0);
    }

    private static void read(SimpleConsumer consumer) {
        while (true) {
            try {
                for (MessageView message : consumer.receive(1, Duration.ofSeconds(15))) {
                    pause();
                    if (text(message).endsWith("7")) {
                        consumer.changeInvisibleDuration(message, Duration.ofSeconds(20));
                    }
                    consumer.ack(message);
                    tell("consumed " + text(message));
                }
            } catch (ClientException | RuntimeException error) {
                tell("refused " + error.toString().replace('\n', ' '));
                pause();
            }
        }
    }

    private static ConsumeResult consume(MessageView message) {
        pause();
        boolean isDone = message.getDeliveryAttempt() > 1 || !text(message).endsWith("7");
        tell((isDone ? "consumed " : "failed ") + text(message));
        return isDone ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
    }

    private static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    private static void pause() {
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private static void tell(String what) {
        System.out.println(what + " " + System.currentTimeMillis());
        System.out.flush();
    }
}
