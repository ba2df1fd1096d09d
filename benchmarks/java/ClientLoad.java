import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * RocketMQ's own Java client as a load: arguments are the name server and the topic. Reads phases from standard input,
 * one a line, and answers each with `done MESSAGES SECONDS`:
 *
 *   send THREADS BATCH MESSAGES     synchronous sends with a key, a tag and a user property; BATCH 1 is a plain send
 *   push MESSAGES                   a push consumer of a new group reads that many from the first offset
 *
 * An exception, or a send that is not SEND_OK, ends the program with status 1.
 */
public final class ClientLoad {
    private static final int BODY_BYTES = 256;
    private static final long DEADLINE_S = 300;
    private static final byte[] BODY = new byte[BODY_BYTES];
    private static final BufferedReader INPUT =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private static String nameServer;
    private static String topic;
    private static DefaultMQProducer producer;

    public static void main(String[] arguments) throws Exception {
        nameServer = arguments[0];
        topic = arguments[1];
        producer = new DefaultMQProducer("load_producer");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        System.out.println("ready");
        for (String line; (line = INPUT.readLine()) != null; ) {
            String[] words = line.trim().split(" ");
            long begun = System.nanoTime();
            long messages = words[0].equals("send")
                ? send(Integer.parseInt(words[1]), Integer.parseInt(words[2]), Long.parseLong(words[3]))
                : push(Long.parseLong(words[1]));
            System.out.println("done " + messages + " " + (System.nanoTime() - begun) / 1e9);
        }
        System.exit(0);
    }

    private static Message message(long number) {
        Message message = new Message(topic, "tag", "key-" + number, BODY);
        message.putUserProperty("device", "d" + number % 1000);
        return message;
    }

    private static long send(int threads, int batch, long messages) throws Exception {
        AtomicLong next = new AtomicLong();
        CountDownLatch open = new CountDownLatch(threads);
        for (int number = 0; number < threads; number++) {
            new Thread(() -> {
                try {
                    for (long at; (at = next.getAndAdd(batch)) < messages; ) {
                        check(batch == 1 ? producer.send(message(at)) : producer.send(several(at, batch)));
                    }
                    open.countDown();
                } catch (Throwable error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            }).start();
        }
        if (!open.await(DEADLINE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("senders did not finish");
        }
        return messages;
    }

    private static List<Message> several(long first, int count) {
        List<Message> messages = new ArrayList<>(count);
        for (int at = 0; at < count; at++) {
            messages.add(message(first + at));
        }
        return messages;
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not acknowledged: " + result);
        }
    }

    private static long push(long messages) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("load_" + System.nanoTime());
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        AtomicLong seen = new AtomicLong();
        CountDownLatch open = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (received, context) -> {
            if (seen.addAndGet(received.size()) >= messages) {
                open.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!open.await(DEADLINE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("received " + seen + " of " + messages);
        }
        consumer.shutdown();
        return seen.get();
    }
}
