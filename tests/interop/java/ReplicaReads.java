import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Sends messages and consumes them slowly, with few in memory, so that most are pulled while the master is gone.
 * Arguments: name servers, topic, number of messages. Prints `sent N`, `consumed N` after every hundred, and in the
 * end `complete`.
 */
public final class ReplicaReads {
    private static final int PAUSE_MS = 4;
    private static final int IN_MEMORY_MAX = 16;
    private static final int INTERVAL_MS = 1_000;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int count = Integer.parseInt(arguments[2]);
        DefaultMQProducer producer = new DefaultMQProducer(topic + "_producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        for (int number = 0; number < count; number++) {
            store(producer, new Message(topic, Integer.toString(number).getBytes(StandardCharsets.UTF_8)));
        }
        producer.shutdown();
        say("sent " + count);
        Set<Integer> consumed = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "_group");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setPollNameServerInterval(INTERVAL_MS);
        consumer.setHeartbeatBrokerInterval(INTERVAL_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setPullBatchSize(IN_MEMORY_MAX / 2);
        consumer.setPullThresholdForQueue(IN_MEMORY_MAX);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> {
                consumed.add(Integer.parseInt(new String(each.getBody(), StandardCharsets.UTF_8)));
                if (consumed.size() % 100 == 0) {
                    say("consumed " + consumed.size());
                }
            });
            try {
                Thread.sleep(PAUSE_MS * messages.size());
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (consumed.size() < count) {
            Thread.sleep(20);
        }
        say("complete");
        System.exit(0);
    }

    /** Sends until it is stored: the first look-up of a route may take a busy name server too long. */
    private static void store(DefaultMQProducer producer, Message message) throws InterruptedException {
        while (true) {
            try {
                if (producer.send(message, 10_000).getSendStatus() == SendStatus.SEND_OK) {
                    return;
                }
            } catch (MQClientException | RemotingException | MQBrokerException error) {
                System.err.println(error.toString().replace('\n', ' '));
            }
            Thread.sleep(100);
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
