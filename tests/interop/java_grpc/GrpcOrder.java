import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Sends messages and consumes all of them. Arguments: endpoint, topic, group, messages, message groups (0: without order), consumers,
 * deadline in ms. Message n is in message group n modulo their number. Prints `sent MS`, `consumed MESSAGE_GROUP NUMBER ATTEMPT` for each
 * delivery, and at the end `all MS`, or `left COUNT`.
 */
public final class GrpcOrder {
    private GrpcOrder() {
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int messages = Integer.parseInt(arguments[3]);
        int groups = Integer.parseInt(arguments[4]);
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration config = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        long began = System.currentTimeMillis();
        try (Producer producer = provider.newProducerBuilder().setClientConfiguration(config).setTopics(topic).build()) {
            for (int number = 0; number < messages; number++) {
                byte[] body = String.valueOf(number).getBytes(StandardCharsets.UTF_8);
                MessageBuilder message = provider.newMessageBuilder().setTopic(topic).setBody(body);
                if (groups > 0) {
                    message.setMessageGroup("g" + number % groups);
                }
                producer.send(message.build());
            }
        }
        say("sent " + (System.currentTimeMillis() - began));
        began = System.currentTimeMillis();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch complete = new CountDownLatch(messages);
        MessageListener listener = message -> {
            String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
            say("consumed " + message.getMessageGroup().orElse("-") + " " + body + " " + message.getDeliveryAttempt());
            if (seen.add(body)) {
                complete.countDown();
            }
            return ConsumeResult.SUCCESS;
        };
        Map<String, FilterExpression> subscription = Collections.singletonMap(topic, FilterExpression.SUB_ALL);
        List<PushConsumer> consumers = new ArrayList<>();
        for (int count = Integer.parseInt(arguments[5]); count > 0; count--) {
            consumers.add(provider.newPushConsumerBuilder().setClientConfiguration(config).setConsumerGroup(arguments[2])
                .setSubscriptionExpressions(subscription).setMessageListener(listener).build());
        }
        boolean all = complete.await(Long.parseLong(arguments[6]), TimeUnit.MILLISECONDS);
        say(all ? "all " + (System.currentTimeMillis() - began) : "left " + complete.getCount());
        System.exit(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
