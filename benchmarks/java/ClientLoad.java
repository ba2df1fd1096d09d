import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/**
 * RocketMQ's own Java client as a load: arguments are the name server and the topic. Reads phases from standard input,
 * one a line, and answers each with `done MESSAGES SECONDS`:
 *
 *   send THREADS BATCH MESSAGES     synchronous sends with a key, a tag and a user property; BATCH 1 is a plain send
 *   push MESSAGES                   a push consumer of a new group reads that many from the first offset
 *   pop THREADS each|batch MESSAGES a new group pops 32 at a time and acknowledges each message, or the 32 in one request
 *   light THREADS MESSAGES          synchronous sends to ten light queues besides their topic
 *   delay THREADS SECONDS MESSAGES  synchronous sends that are due in so many seconds and within two more
 *   wait                            until the first message of the last `delay` is almost due
 *   delivered                       until all messages of the last `delay` are in the topic
 *
 * An exception, or a send that is not SEND_OK, ends the program with status 1.
 */
@SuppressWarnings("deprecation") // maxOffset
public final class ClientLoad {
    private static final int BODY_BYTES = 256;
    private static final long DEADLINE_S = 300;
    private static final String LIGHT_QUEUES =
        IntStream.range(0, 10).mapToObj(number -> "%LMQ%light" + number).collect(Collectors.joining(","));
    private static final int POP_MESSAGES = 32;
    private static final long DUE_WITHIN_MS = 2_000;
    private static final long REQUEST_TIMEOUT_MS = 10_000;
    private static final byte[] BODY = new byte[BODY_BYTES];
    private static final BufferedReader INPUT =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private static String nameServer;
    private static String topic;
    private static DefaultMQProducer producer;
    private static long inLightQueue;
    private static long dueMs;
    private static long delayed;
    private static long inTopicBefore;

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
            long messages = run(words);
            System.out.println("done " + messages + " " + (System.nanoTime() - begun) / 1e9);
        }
        System.exit(0);
    }

    private static long run(String[] words) throws Exception {
        long last = words.length == 1 ? 0 : Long.parseLong(words[words.length - 1]);
        switch (words[0]) {
            case "send": {
                int batch = Integer.parseInt(words[2]);
                return send(Integer.parseInt(words[1]), batch, last,
                    at -> batch == 1 ? producer.send(message(at)) : producer.send(several(at, batch)));
            }
            case "push": return push(last);
            case "pop": return pop(Integer.parseInt(words[1]), words[2].equals("batch"), last);
            case "light": return toLightQueues(Integer.parseInt(words[1]), last);
            case "delay": return delay(Integer.parseInt(words[1]), Long.parseLong(words[2]), last);
            case "wait": return waitUntilDue();
            case "delivered": return delivered();
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private static Message message(long number) {
        Message message = new Message(topic, "tag", "key-" + number, BODY);
        message.putUserProperty("device", "d" + number % 1000);
        return message;
    }

    private static Message light(long number) {
        Message message = message(number);
        message.setTopic(topic + "_light");
        MessageAccessor.putProperty(message, "INNER_MULTI_DISPATCH", LIGHT_QUEUES);
        return message;
    }

    /** One or several messages from this number on. */
    private interface Sender {
        SendResult send(long number) throws Exception;
    }

    private static long send(int threads, int batch, long messages, Sender sender) throws Exception {
        AtomicLong next = new AtomicLong();
        CountDownLatch open = new CountDownLatch(threads);
        for (int number = 0; number < threads; number++) {
            new Thread(() -> {
                try {
                    for (long at; (at = next.getAndAdd(batch)) < messages; ) {
                        check(sender.send(at));
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

    /** Ends when the last message is in the light queues, which RocketMQ's broker writes behind its answers. */
    private static long toLightQueues(int threads, long messages) throws Exception {
        send(threads, 1, messages, at -> producer.send(light(at)));
        inLightQueue += messages;
        String broker = producer.fetchPublishMessageQueues(topic + "_light").get(0).getBrokerName();
        long deadline = System.currentTimeMillis() + DEADLINE_S * 1_000;
        while (producer.maxOffset(new MessageQueue("%LMQ%light9", broker, 0)) < inLightQueue) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("not in its light queues");
            }
            Thread.sleep(20);
        }
        return messages;
    }

    private static long delay(int threads, long seconds, long messages) throws Exception {
        String delayedTopic = topic + "_delayed";
        dueMs = System.currentTimeMillis() + seconds * 1_000;
        inTopicBefore = inTopic(delayedTopic);
        delayed = messages;
        send(threads, 1, messages, at -> {
            Message message = message(at);
            message.setTopic(delayedTopic);
            message.setDeliverTimeMs(dueMs + at * DUE_WITHIN_MS / messages);
            return producer.send(message);
        });
        if (System.currentTimeMillis() >= dueMs) {
            throw new IllegalStateException("the first messages were due before the last was sent");
        }
        return messages;
    }

    private static long waitUntilDue() throws Exception {
        Thread.sleep(Math.max(0, dueMs - 1_000 - System.currentTimeMillis()));
        return delayed;
    }

    private static long delivered() throws Exception {
        long deadline = System.currentTimeMillis() + DEADLINE_S * 1_000;
        for (long found; (found = inTopic(topic + "_delayed") - inTopicBefore) < delayed; Thread.sleep(100)) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("delivered " + found + " of " + delayed);
            }
        }
        return delayed;
    }

    private static long inTopic(String name) throws Exception {
        long found = 0;
        try {
            for (MessageQueue queue : producer.fetchPublishMessageQueues(name)) {
                found += producer.maxOffset(queue);
            }
        } catch (MQClientException missing) {
            return 0; // before the first message
        }
        return found;
    }

    private static long pop(int threads, boolean batch, long messages) throws Exception {
        String group = "load_" + System.nanoTime();
        String broker = producer.fetchPublishMessageQueues(topic).get(0).getBrokerName();
        MQClientInstance factory = producer.getDefaultMQProducerImpl().getMqClientFactory();
        String address = factory.findBrokerAddressInPublish(broker);
        AtomicLong done = new AtomicLong();
        CountDownLatch open = new CountDownLatch(threads);
        for (int number = 0; number < threads; number++) {
            new Thread(() -> {
                try {
                    while (done.get() < messages) {
                        List<MessageExt> found = popped(factory, broker, address, group);
                        acknowledge(factory, address, group, found, batch);
                        done.addAndGet(found.size());
                    }
                    open.countDown();
                } catch (Throwable error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            }).start();
        }
        if (!open.await(DEADLINE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("popped " + done + " of " + messages);
        }
        return done.get();
    }

    private static List<MessageExt> popped(MQClientInstance factory, String broker, String address, String group)
        throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(POP_MESSAGES);
        header.setInvisibleTime(60_000);
        header.setBornTime(System.currentTimeMillis());
        header.setOrder(false);
        CompletableFuture<PopResult> answer = new CompletableFuture<>();
        factory.getMQClientAPIImpl().popMessageAsync(broker, address, header, REQUEST_TIMEOUT_MS, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                answer.completeExceptionally(error);
            }
        });
        List<MessageExt> found = answer.get().getMsgFoundList();
        return found == null ? List.of() : found;
    }

    private static void acknowledge(
        MQClientInstance factory, String address, String group, List<MessageExt> found, boolean batch) throws Exception {
        List<Acknowledged> answers = new ArrayList<>();
        List<String> handles = new ArrayList<>();
        for (MessageExt each : found) {
            handles.add(each.getProperty("POP_CK"));
            if (!batch) {
                AckMessageRequestHeader header = new AckMessageRequestHeader();
                header.setConsumerGroup(group);
                header.setTopic(topic);
                header.setQueueId(each.getQueueId());
                header.setOffset(each.getQueueOffset());
                header.setExtraInfo(each.getProperty("POP_CK"));
                answers.add(new Acknowledged());
                factory.getMQClientAPIImpl().ackMessageAsync(
                    address, REQUEST_TIMEOUT_MS, answers.get(answers.size() - 1), header);
            }
        }
        if (batch && !handles.isEmpty()) {
            answers.add(new Acknowledged());
            factory.getMQClientAPIImpl().batchAckMessageAsync(
                address, REQUEST_TIMEOUT_MS, answers.get(0), topic, group, handles);
        }
        for (Acknowledged each : answers) {
            if (each.answer.get().getStatus() != AckStatus.OK) {
                throw new IllegalStateException("not acknowledged: " + each.answer.get());
            }
        }
    }

    private static final class Acknowledged implements AckCallback {
        private final CompletableFuture<AckResult> answer = new CompletableFuture<>();

        @Override
        public void onSuccess(AckResult result) {
            answer.complete(result);
        }

        @Override
        public void onException(Throwable error) {
            answer.completeExceptionally(error);
        }
    }
}
