import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Answers requests of MQTT clients in the topic `plant`, and asks an MQTT service on `rooms/7/ask` for each line of its input.
 */
public final class MqttRequests {
    private MqttRequests() {
    }

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("mqtt_requests");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("mqtt_services");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("plant", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                try {
                    byte[] large = "21.5 ".repeat(2_000).getBytes(StandardCharsets.UTF_8); // the client compresses it
                    System.out.println("served " + producer.send(MessageUtil.createReplyMessage(each, large)).getSendStatus());
                } catch (Exception error) {
                    System.out.println("failed " + error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("started");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Message request = new Message("rooms", line.getBytes(StandardCharsets.UTF_8));
            request.putUserProperty("originMqttTopic", "rooms/7/ask");
            Message answer = producer.request(request, 20_000);
            System.out.println("answered " + new String(answer.getBody(), StandardCharsets.UTF_8));
        }
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }
}
