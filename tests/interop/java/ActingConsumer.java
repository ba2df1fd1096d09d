import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes slowly, one message a pull, with RocketMQ's own Java client until a line comes on standard input. Arguments:
 * name servers, topic, group, milliseconds a message, and `orderly` to lock the queues and read them in order. Prints `consumed BODY` for each, and `ended` once its offsets are
 * committed.
 */
public final class ActingConsumer {
    public static void main(String[] arguments) throws Exception {
        // A lock that is not renewed for three seconds is one that the client does not believe in.
        System.setProperty("rocketmq.client.rebalance.lockInterval", "1000");
        System.setProperty("rocketmq.client.rebalance.lockMaxLiveTime", "3000");
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
        if (arguments.length > 4 && arguments[4].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                consume(messages, pauseMs)
                    ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                consume(messages, pauseMs)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        System.in.read();
        consumer.shutdown();
        System.out.println("ended");
        System.out.flush();
        System.exit(0);
    }

    private static boolean consume(List<MessageExt> messages, int pauseMs) {
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException error) {
            return false;
        }
        messages.forEach(each -> System.out.println("consumed " + new String(each.getBody(), StandardCharsets.UTF_8)));
        System.out.flush();
        return true;
    }
}
