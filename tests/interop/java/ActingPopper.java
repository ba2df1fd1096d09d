import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Consumes slowly with RocketMQ's own Java client, which leaves the allocation of queues to the server, until a line comes
 * on standard input. Arguments: name servers, topic, group, milliseconds a message. A message whose body ends in 7 fails
 * at its first delivery. Prints `consumed BODY TIME-MS` or `failed BODY TIME-MS` for each, and `ended`.
 */
public final class ActingPopper {
    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        int pauseMs = Integer.parseInt(arguments[3]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setInstanceName(String.valueOf(ProcessHandle.current().pid()));
        consumer.setPollNameServerInterval(500);
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setClientRebalance(false);
        consumer.setPopBatchNums(1);
        consumer.setPopThresholdForQueue(2);
        consumer.setPopInvisibleTime(15_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            consume(messages, pauseMs)
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        consumer.start();
        System.in.read();
        consumer.shutdown();
        System.out.println("ended");
        System.out.flush();
        System.exit(0);
    }

    private static boolean consume(List<MessageExt> messages, int pauseMs) {
        MessageExt message = messages.get(0);
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException error) {
            return false;
        }
        boolean isDone = message.getReconsumeTimes() > 0 || !body.endsWith("7");
        System.out.println((isDone ? "consumed " : "failed ") + body + " " + System.currentTimeMillis());
        System.out.flush();
        return isDone;
    }
}
