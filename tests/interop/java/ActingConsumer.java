import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * Consumes slowly, one message a pull, with RocketMQ's own Java client until a line comes on standard input. Arguments:
 * name servers, topic, group, milliseconds a message. Prints `consumed BODY` for each, and `ended` once its offsets are
 * committed.
 */
public final class ActingConsumer {
    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        int pauseMs = Integer.parseInt(arguments[3]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setPollNameServerInterval(500);
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.setPersistConsumerOffsetInterval(300);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setPullBatchSize(1);
        consumer.setPullThresholdForQueue(2);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                Thread.sleep(pauseMs);
            } catch (InterruptedException error) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            messages.forEach(each -> System.out.println("consumed " + new String(each.getBody(), StandardCharsets.UTF_8)));
            System.out.flush();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.in.read();
        consumer.shutdown();
        System.out.println("ended");
        System.out.flush();
        System.exit(0);
    }
}
