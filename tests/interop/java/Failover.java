import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends numbers and consumes them with RocketMQ's own Java client until a line comes on standard input, while masters
 * die. Arguments: name servers, topic, milliseconds between two questions for the route, retries of a send (above 2
 * within ten seconds). Prints `acknowledged N` each second, and in the end `lost N of M`, the longest
 * time without an acknowledgement, and how many sends failed at their caller.
 */
public final class Failover {
    private static final long DEADLINE_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int intervalMs = arguments.length > 2 ? Integer.parseInt(arguments[2]) : 30_000;
        int retries = arguments.length > 3 ? Integer.parseInt(arguments[3]) : 2;
        Set<Integer> acknowledged = ConcurrentHashMap.newKeySet();
        Set<Integer> consumed = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "_group");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setPollNameServerInterval(intervalMs);
        consumer.setHeartbeatBrokerInterval(intervalMs);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> consumed.add(Integer.parseInt(new String(each.getBody(), StandardCharsets.UTF_8))));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = new DefaultMQProducer(topic + "_producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.setPollNameServerInterval(intervalMs);
        producer.setSendMsgTimeout(retries > 2 ? 10_000 : 2_000);
        producer.setRetryTimesWhenSendFailed(retries);
        producer.start();
        consumer.start();
        AtomicBoolean stop = new AtomicBoolean();
        Thread reader = new Thread(() -> {
            try {
                System.in.read();
            } catch (java.io.IOException error) {
                // the end of the input is a line too
            }
            stop.set(true);
        });
        reader.setDaemon(true);
        reader.start();
        long failed = 0;
        long longestMs = 0;
        long lastMs = System.currentTimeMillis();
        long saidMs = 0;
        for (int number = 0; !stop.get(); number++) {
            try {
                Message message = new Message(topic, Integer.toString(number).getBytes(StandardCharsets.UTF_8));
                if (producer.send(message).getSendStatus() == SendStatus.SEND_OK) {
                    acknowledged.add(number);
                    long nowMs = System.currentTimeMillis();
                    longestMs = Math.max(longestMs, nowMs - lastMs);
                    lastMs = nowMs;
                }
            } catch (Exception error) {
                failed++;
                System.err.println(number + " " + error.toString().replace('\n', ' '));
                Thread.sleep(50);
            }
            if (System.currentTimeMillis() - saidMs > 1_000) {
                saidMs = System.currentTimeMillis();
                System.out.println("acknowledged " + acknowledged.size() + " consumed " + consumed.size());
                System.out.flush();
            }
        }
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (!consumed.containsAll(acknowledged) && System.currentTimeMillis() < deadline) {
            Thread.sleep(100);
        }
        Set<Integer> lost = new HashSet<>(acknowledged);
        lost.removeAll(consumed);
        System.out.println("lost " + lost.size() + " of " + acknowledged.size() + ", longest pause " + longestMs
            + " ms, " + failed + " sends failed");
        System.out.flush();
        System.exit(0);
    }
}
