import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.body.CMResult;
import org.apache.rocketmq.remoting.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.remoting.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.remoting.protocol.body.QueueTimeSpan;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What RocketMQ's own Java client can do with a server, one scenario after the other. Arguments: name servers, then the
 * scenarios to run (none: all). Prints `NAME ok` or `NAME failed: REASON` for each and ends with status 0.
 */
public final class ClientFeatures {
    private static final int COUNT = 40;
    private static final long DEADLINE_MS = 60_000;
    private static String nameServers;
    private static DefaultMQProducer producer;

    private interface Scenario {
        void run(String topic) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        nameServers = arguments[0];
        Set<String> wanted = new HashSet<>(List.of(arguments).subList(1, arguments.length));
        producer = new DefaultMQProducer("features_producer");
        producer.setNamesrvAddr(nameServers);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        run(wanted, "sync", ClientFeatures::sync);
        run(wanted, "async", ClientFeatures::async);
        run(wanted, "oneway", ClientFeatures::oneway);
        run(wanted, "batch", ClientFeatures::batch);
        run(wanted, "orderly", topic -> orderly(topic, false));
        run(wanted, "orderly_suspended", topic -> orderly(topic, true));
        run(wanted, "delay_level", ClientFeatures::delayLevel);
        run(wanted, "delay_ms", ClientFeatures::delayMs);
        run(wanted, "recall", ClientFeatures::recall);
        run(wanted, "tags", topic -> filtered(topic, MessageSelector.byTag("even")));
        run(wanted, "sql", topic -> filtered(topic, MessageSelector.bySql("number >= 10 AND parity = 'even'")));
        run(wanted, "retry", ClientFeatures::retry);
        run(wanted, "lite_pull", ClientFeatures::litePull);
        run(wanted, "query_key", ClientFeatures::queryKey);
        run(wanted, "large", ClientFeatures::large);
        run(wanted, "transaction", ClientFeatures::transaction);
        run(wanted, "request_reply", ClientFeatures::requestReply);
        run(wanted, "server_rebalance", ClientFeatures::serverRebalance);
        run(wanted, "pop", ClientFeatures::pop);
        run(wanted, "pop_ordered", ClientFeatures::popOrdered);
        run(wanted, "priority", ClientFeatures::priority);
        run(wanted, "trace", ClientFeatures::trace);
        run(wanted, "first_send", ClientFeatures::firstSend);
        run(wanted, "asked_members", ClientFeatures::askedMembers);
        producer.shutdown();
        System.exit(0);
    }

    private static void run(Set<String> wanted, String name, Scenario scenario) {
        if (!wanted.isEmpty() && !wanted.contains(name)) {
            return;
        }
        String said = "ok";
        try {
            scenario.run("features_" + name);
        } catch (Throwable error) {
            said = "failed: " + error.toString().replace('\n', ' ');
        }
        System.out.println(name + " " + said);
        System.out.flush();
    }

    private static void sync(String topic) throws Exception {
        sendNumbers(topic);
        expectAll(topic, consume(topic, MessageSelector.byTag("*")), numbers());
    }

    private static void async(String topic) throws Exception {
        CountDownLatch open = new CountDownLatch(COUNT);
        Set<Throwable> failures = ConcurrentHashMap.newKeySet();
        for (int number = 0; number < COUNT; number++) {
            producer.send(message(topic, number), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    open.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failures.add(error);
                    open.countDown();
                }
            });
        }
        check(open.await(DEADLINE_MS, TimeUnit.MILLISECONDS), "callbacks are missing");
        check(failures.isEmpty(), "callbacks with errors: " + failures);
        expectAll(topic, consume(topic, MessageSelector.byTag("*")), numbers());
    }

    private static void oneway(String topic) throws Exception {
        producer.send(message(topic, 0)); // makes the topic and waits for it
        for (int number = 1; number < COUNT; number++) {
            producer.sendOneway(message(topic, number));
        }
        expectAll(topic, consume(topic, MessageSelector.byTag("*")), numbers());
    }

    private static void batch(String topic) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int number = 0; number < COUNT; number++) {
            messages.add(message(topic, number));
        }
        check(producer.send(messages).getSendStatus() == SendStatus.SEND_OK, "not stored");
        expectAll(topic, consume(topic, MessageSelector.byTag("*")), numbers());
    }

    private static void orderly(String topic, boolean suspends) throws Exception {
        for (int number = 0; number < COUNT; number++) {
            producer.send(message(topic, number), (queues, sent, key) -> queues.get((Integer) key % queues.size()), number % 4);
        }
        List<Integer> found = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.subscribe(topic, "*");
        Set<Integer> seen = ConcurrentHashMap.newKeySet();
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            if (suspends && messages.stream().anyMatch(each -> number(each) % 7 == 0 && seen.add(number(each)))) {
                context.setSuspendCurrentQueueTimeMillis(200);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            messages.forEach(each -> found.add(number(each)));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        try {
            await(() -> found.size() >= COUNT, () -> "consumed " + found);
        } finally {
            consumer.shutdown();
        }
        for (int key = 0; key < 4; key++) {
            int previous = -1;
            for (int number : List.copyOf(found)) {
                if (number % 4 == key) {
                    check(number > previous, "out of order: " + found);
                    previous = number;
                }
            }
        }
    }

    private static void delayLevel(String topic) throws Exception {
        Message message = message(topic, 0);
        message.setDelayTimeLevel(2); // five seconds
        delayed(topic, message, 5_000);
    }

    private static void delayMs(String topic) throws Exception {
        Message message = message(topic, 0);
        message.setDelayTimeMs(3_000);
        delayed(topic, message, 3_000);
    }

    private static void recall(String topic) throws Exception {
        check(producer.send(message(topic, 2)).getRecallHandle() == null, "a message for now has a handle");
        Set<Integer> found = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> found.add(number(each)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            Message recalled = message(topic, 0);
            recalled.setDelayTimeMs(3_000);
            SendResult sent = producer.send(recalled);
            Message kept = message(topic, 1);
            kept.setDelayTimeMs(4_000);
            producer.send(kept);
            for (int time = 0; time < 2; time++) {
                String id = producer.recallMessage(topic, sent.getRecallHandle());
                check(sent.getMsgId().equals(id), "recalled " + id + " instead of " + sent.getMsgId());
            }
            await(() -> found.contains(1), () -> "the other message did not come");
            check(!found.contains(0), "the recalled message came");
            try {
                producer.recallMessage(topic, sent.getRecallHandle());
                check(false, "a message whose time has come was recalled");
            } catch (MQBrokerException refused) {
                check(refused.getResponseCode() == 604, "refused with " + refused.getResponseCode());
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static void delayed(String topic, Message message, long delayMs) throws Exception {
        producer.send(message(topic, 1));
        Set<Integer> found = ConcurrentHashMap.newKeySet();
        long[] arrivedMs = new long[2];
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> {
                arrivedMs[number(each)] = System.currentTimeMillis();
                found.add(number(each));
            });
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            await(() -> found.contains(1), () -> "the message without delay did not come");
            long sentMs = System.currentTimeMillis();
            producer.send(message);
            await(() -> found.contains(0), () -> "the message did not come");
            check(arrivedMs[0] - sentMs >= delayMs - 100, "it came after " + (arrivedMs[0] - sentMs) + " ms");
        } finally {
            consumer.shutdown();
        }
    }

    private static void filtered(String topic, MessageSelector selector) throws Exception {
        sendNumbers(topic);
        Set<Integer> expected = numbers();
        expected.removeIf(each -> each % 2 != 0 || (topic.endsWith("sql") && each < 10));
        expectAll(topic, consume(topic, selector), expected);
    }

    private static void retry(String topic) throws Exception {
        producer.send(message(topic, 0));
        List<Integer> attempts = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            attempts.add(messages.get(0).getReconsumeTimes());
            context.setDelayLevelWhenNextConsume(1);
            return attempts.size() < 2 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            await(() -> attempts.size() >= 2, () -> "attempts: " + attempts);
            check(attempts.equals(List.of(0, 1)), "attempts: " + attempts);
        } finally {
            consumer.shutdown();
        }
    }

    private static void litePull(String topic) throws Exception {
        sendNumbers(topic);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(topic + "_group");
        consumer.setNamesrvAddr(nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();
        try {
            Set<Integer> found = new HashSet<>();
            await(() -> {
                consumer.poll(500).forEach(each -> found.add(number(each)));
                return found.size() >= COUNT;
            }, () -> "pulled " + found.size());
            consumer.commit();
            expectAll(topic, found, numbers());
        } finally {
            consumer.shutdown();
        }
    }

    private static void queryKey(String topic) throws Exception {
        Message message = message(topic, 7);
        message.setKeys("key-" + UUID.randomUUID());
        SendResult sent = producer.send(message);
        long now = System.currentTimeMillis();
        QueryResult found = producer.queryMessage(topic, message.getKeys(), 8, now - 60_000, now + 60_000);
        check(found.getMessageList().size() == 1, "by key: " + found);
        check(number(producer.viewMessage(topic, sent.getMsgId())) == 7, "by unique key");
        check(number(producer.viewMessage(topic, sent.getOffsetMsgId())) == 7, "by offset");
    }

    private static void large(String topic) throws Exception {
        Message message = message(topic, 0);
        message.setBody(new byte[1 << 20]);
        producer.send(message);
        List<Integer> sizes = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> sizes.add(each.getBody().length));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            await(() -> sizes.contains(1 << 20), () -> "sizes: " + sizes);
        } finally {
            consumer.shutdown();
        }
    }

    /** Of every four one is rolled back, one is committed when the broker asks, and two are committed at once. */
    private static void transaction(String topic) throws Exception {
        Set<Integer> asked = ConcurrentHashMap.newKeySet();
        TransactionMQProducer transactional = new TransactionMQProducer(topic + "_producer");
        transactional.setNamesrvAddr(nameServers);
        transactional.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return switch (((Integer) argument) % 4) {
                    case 0 -> LocalTransactionState.ROLLBACK_MESSAGE;
                    case 1 -> LocalTransactionState.UNKNOW;
                    default -> LocalTransactionState.COMMIT_MESSAGE;
                };
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.add(number(message));
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        transactional.start();
        try {
            Set<Integer> sent = new HashSet<>();
            Set<Integer> open = new HashSet<>();
            for (int number = 0; number < COUNT; number++) {
                transactional.sendMessageInTransaction(message(topic, number), number);
                if (number % 4 != 0) {
                    sent.add(number);
                }
                if (number % 4 == 1) {
                    open.add(number);
                }
            }
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (!asked.equals(open) && System.currentTimeMillis() < deadline) {
                Thread.sleep(100);
            }
            check(asked.equals(open), "asked about " + asked + ", open were " + open);
            expectAll(topic, consume(topic, MessageSelector.byTag("*")), sent);
        } finally {
            transactional.shutdown();
        }
    }

    private static void requestReply(String topic) throws Exception {
        producer.send(message(topic, 0));
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                if (each.getProperty("CORRELATION_ID") != null) {
                    try {
                        producer.send(MessageUtil.createReplyMessage(each, "answer".getBytes(StandardCharsets.UTF_8)));
                    } catch (Exception error) {
                        System.err.println(error);
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            Message answer = producer.request(message(topic, 1), 10_000);
            check(new String(answer.getBody(), StandardCharsets.UTF_8).equals("answer"), "the answer is another one");
        } finally {
            consumer.shutdown();
        }
    }

    private static void serverRebalance(String topic) throws Exception {
        sendNumbers(topic);
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.setClientRebalance(false);
        Set<Integer> found = consume(topic, MessageSelector.byTag("*"), consumer);
        expectAll(topic, found, numbers());
    }

    /** Every message once, except those that the listener rejects at first: they come a second time. */
    private static void pop(String topic) throws Exception {
        sendNumbers(topic);
        MQClientInstance factory = producer.getDefaultMQProducerImpl().getMqClientFactory();
        factory.getMQClientAPIImpl().setMessageRequestMode(factory.findBrokerAddressInPublish("broker-a"), topic,
            topic + "_group", MessageRequestMode.POP, 0, 10_000);
        List<String> attempts = Collections.synchronizedList(new ArrayList<>());
        Set<String> expected = new HashSet<>();
        for (int number = 0; number < COUNT; number++) {
            expected.add(number + " try 0");
            if (number % 10 == 0) {
                expected.add(number + " try 1");
            }
        }
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.setClientRebalance(false);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            attempts.add(number(message) + " try " + message.getReconsumeTimes());
            return number(message) % 10 == 0 && message.getReconsumeTimes() == 0
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            await(() -> attempts.size() >= expected.size(), () -> "attempts: " + attempts);
            check(attempts.size() == expected.size() && new HashSet<>(attempts).equals(expected), "attempts: " + attempts);
        } finally {
            consumer.shutdown();
        }
    }

    /** What a proxy does for FIFO consumers: a lost answer is asked for again, the first message is done the second time. */
    private static void popOrdered(String topic) throws Exception {
        for (int number = 0; number < COUNT; number++) {
            producer.send(message(topic, number), (queues, each, argument) -> queues.get(0), null);
        }
        check(popInOrder(topic, "one", 4).equals("0 1 2 3"), "not the first ones");
        check(popInOrder(topic, "two", 4).equals(""), "another attempt got messages");
        check(popInOrder(topic, "one", 4).equals("0 1 2 3"), "the same attempt got others");
        for (MessageExt each : popped.subList(1, 4)) {
            acknowledge(topic, each);
        }
        check(popInOrder(topic, "three", 4).equals(""), "a message is in flight");
        await(() -> popInOrder(topic, "four", 2).equals("0 4"), () -> "popped: " + popped);
        check(popped.get(0).getReconsumeTimes() == 1, "delivered again as " + popped.get(0).getReconsumeTimes());
        check(popped.get(1).getReconsumeTimes() == 0, "delivered first as " + popped.get(1).getReconsumeTimes());
        for (int next = 5; next < COUNT; next++) {
            for (MessageExt each : popped) {
                acknowledge(topic, each);
            }
            String wanted = Integer.toString(next);
            check(popInOrder(topic, "after " + next, 1).equals(wanted), "popped: " + popped + " instead of " + wanted);
        }
    }

    /** Higher priorities come first, and in order within each. */
    private static void priority(String topic) throws Exception {
        producer.getDefaultMQProducerImpl().getMqClientFactory().getMQAdminImpl()
            .createTopic("TBW102", topic, 4, 0, java.util.Map.of("+message.type", "PRIORITY"));
        for (int number = 0; number < 24; number++) {
            Message message = message(topic, number);
            message.setPriority(number % 4);
            check(producer.send(message).getMessageQueue().getQueueId() == number % 4, "in another queue");
        }
        check(pop(topic, 7).equals("3 7 11 15 19 23 2"), "popped: " + popped);
        check(pop(topic, 32).equals("6 10 14 18 22 1 5 9 13 17 21 0 4 8 12 16 20"), "popped: " + popped);
    }

    private static String pop(String topic, int count) {
        return popInOrder(topic, null, count);
    }

    private static List<MessageExt> popped = List.of();

    /** The numbers of the messages, kept in `popped`, that a POP gets; in order where it has an attempt. */
    private static String popInOrder(String topic, String attempt, int count) {
        MQClientInstance factory = producer.getDefaultMQProducerImpl().getMqClientFactory();
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(topic + "_group");
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(count);
        header.setInvisibleTime(3_000);
        header.setBornTime(System.currentTimeMillis());
        header.setOrder(attempt != null);
        header.setAttemptId(attempt);
        CompletableFuture<PopResult> answer = new CompletableFuture<>();
        try {
            factory.getMQClientAPIImpl().popMessageAsync("broker-a", factory.findBrokerAddressInPublish("broker-a"), header,
                10_000, new PopCallback() {
                    @Override
                    public void onSuccess(PopResult result) {
                        answer.complete(result);
                    }

                    @Override
                    public void onException(Throwable error) {
                        answer.completeExceptionally(error);
                    }
                });
            List<MessageExt> found = answer.get(10, TimeUnit.SECONDS).getMsgFoundList();
            popped = found == null ? List.of() : found;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
        List<String> numbers = new ArrayList<>();
        popped.forEach(each -> numbers.add(Integer.toString(number(each))));
        return String.join(" ", numbers);
    }

    private static void acknowledge(String topic, MessageExt message) throws Exception {
        MQClientInstance factory = producer.getDefaultMQProducerImpl().getMqClientFactory();
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(topic + "_group");
        header.setTopic(topic);
        header.setQueueId(message.getQueueId());
        header.setOffset(message.getQueueOffset());
        header.setExtraInfo(message.getProperty("POP_CK"));
        CompletableFuture<AckResult> answer = new CompletableFuture<>();
        factory.getMQClientAPIImpl().ackMessageAsync(factory.findBrokerAddressInPublish("broker-a"), 10_000,
            new AckCallback() {
                @Override
                public void onSuccess(AckResult result) {
                    answer.complete(result);
                }

                @Override
                public void onException(Throwable error) {
                    answer.completeExceptionally(error);
                }
            }, header);
        check(answer.get(10, TimeUnit.SECONDS).getStatus() == AckStatus.OK, "not done");
    }

    /** One record of the producer, two of the consumer. */
    private static void trace(String topic) throws Exception {
        DefaultMQProducer traced = new DefaultMQProducer(topic + "_producer");
        traced.setEnableTrace(true);
        traced.setNamesrvAddr(nameServers);
        traced.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "_group");
        consumer.setEnableTrace(true);
        consumer.setNamesrvAddr(nameServers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        CountDownLatch consumed = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            consumed.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        String id = traced.send(message(topic, 0)).getMsgId();
        consumer.start();
        check(consumed.await(DEADLINE_MS, TimeUnit.MILLISECONDS), "not consumed");
        Set<String> found = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer reader = consumer(topic + "_reader");
        reader.subscribe("RMQ_SYS_TRACE_TOPIC", "*");
        reader.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt each : messages) {
                for (String record : new String(each.getBody(), StandardCharsets.UTF_8).split("\u0002")) {
                    if (record.contains(id)) {
                        found.add(record.split("\u0001")[0]);
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        reader.start();
        try {
            await(() -> found.equals(Set.of("Pub", "SubBefore", "SubAfter")), () -> "recorded: " + found);
        } finally {
            reader.shutdown();
            consumer.shutdown();
            traced.shutdown();
        }
    }

    /** A topic is there with the answer to its first send, also for a consumer that starts then. */
    private static void firstSend(String topic) throws Exception {
        for (int round = 0; round < 10; round++) {
            String fresh = topic + "_" + UUID.randomUUID();
            producer.send(message(fresh, round));
            check(!producer.fetchPublishMessageQueues(fresh).isEmpty(), "no queues");
            if (round % 3 != 0) {
                continue;
            }
            CountDownLatch consumed = new CountDownLatch(1);
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(fresh + "_group");
            consumer.setNamesrvAddr(nameServers);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(fresh, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                consumed.countDown();
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            check(consumed.await(15, TimeUnit.SECONDS), "a consumer that started right after the first send got nothing");
            consumer.shutdown();
        }
    }

    /** What RocketMQ's tools and Dashboard ask of a group's members, and of the broker about them. */
    private static void askedMembers(String topic) throws Exception {
        Set<String> consumed = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = consumer(topic);
        consumer.subscribe(topic, "*");
        List<String> ids = Collections.synchronizedList(new ArrayList<>());
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> ids.add(each.getMsgId()));
            messages.forEach(each -> consumed.add(each.getMsgId()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQAdminExt tool = new DefaultMQAdminExt();
        tool.setNamesrvAddr(nameServers);
        tool.setInstanceName(topic + "_tool");
        SendResult result = producer.send(message(topic, 0));
        consumer.start();
        tool.start();
        try {
            String group = consumer.getConsumerGroup();
            String id = result.getMsgId();
            await(() -> consumed.contains(id), () -> "not consumed");
            String client = tool.examineConsumerConnectionInfo(group).getConnectionSet().iterator().next().getClientId();
            ConsumerRunningInfo info = tool.getConsumerRunningInfo(group, client, true);
            check(!info.getMqTable().isEmpty(), "no queues in " + info.getProperties());
            check(info.getJstack() != null && info.getJstack().contains("TID"), "no stacks");
            check(info.getSubscriptionSet().stream().anyMatch(each -> topic.equals(each.getTopic())), "no subscription");
            ConsumeMessageDirectlyResult direct = tool.consumeMessageDirectly(group, client, topic, id);
            check(direct.getConsumeResult() == CMResult.CR_SUCCESS, "directly: " + direct);
            check(Collections.frequency(ids, id) == 2, "consumed " + ids);
            check(tool.getConsumeStatus(topic, group, client).get(client) != null, "no status of the member");
            List<QueueTimeSpan> spans = tool.queryConsumeTimeSpan(topic, group);
            check(spans.stream().anyMatch(each -> each.getMaxTimeStamp() > 0), "no times in " + spans);
            check(tool.querySubscription(group, topic) != null, "no subscription at the broker");
            check(tool.getAllProducerInfo(tool.examineTopicRouteInfo(topic).getBrokerDatas().get(0).selectBrokerAddr())
                .getData().containsKey("features_producer"), "the producer is not listed");
        } finally {
            tool.shutdown();
            consumer.shutdown();
        }
    }

    private static Set<Integer> consume(String topic, MessageSelector selector) throws Exception {
        return consume(topic, selector, consumer(topic));
    }

    /** What comes until everything came, or nothing more for a while. */
    private static Set<Integer> consume(String topic, MessageSelector selector, DefaultMQPushConsumer consumer)
        throws Exception {
        Set<Integer> found = ConcurrentHashMap.newKeySet();
        consumer.subscribe(topic, selector);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> found.add(number(each)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        int size = -1;
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        long quietMs = 0;
        while (found.size() < COUNT && quietMs < 4_000 && System.currentTimeMillis() < deadline) {
            Thread.sleep(100);
            quietMs = found.size() == size && size > 0 ? quietMs + 100 : 0;
            size = found.size();
        }
        consumer.shutdown();
        return found;
    }

    private static DefaultMQPushConsumer consumer(String topic) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "_group");
        consumer.setNamesrvAddr(nameServers);
        consumer.setPollNameServerInterval(1_000); // the retry topic is there only after the first heartbeat
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static void sendNumbers(String topic) throws Exception {
        for (int number = 0; number < COUNT; number++) {
            SendResult result = producer.send(message(topic, number));
            check(result.getSendStatus() == SendStatus.SEND_OK, "not stored: " + result);
        }
    }

    private static Message message(String topic, int number) {
        String parity = number % 2 == 0 ? "even" : "odd";
        Message message = new Message(topic, parity, ("body " + number).getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("number", Integer.toString(number));
        message.putUserProperty("parity", parity);
        return message;
    }

    private static int number(Message message) {
        return Integer.parseInt(message.getUserProperty("number"));
    }

    private static Set<Integer> numbers() {
        Set<Integer> all = new HashSet<>();
        for (int number = 0; number < COUNT; number++) {
            all.add(number);
        }
        return all;
    }

    private static void expectAll(String topic, Set<Integer> found, Set<Integer> expected) {
        check(found.equals(expected), topic + ": consumed " + found.size() + " of " + expected.size());
    }

    private static void await(BooleanSupplier condition, java.util.function.Supplier<String> otherwise) throws Exception {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (!condition.getAsBoolean()) {
            check(System.currentTimeMillis() < deadline, otherwise.get());
            Thread.sleep(20);
        }
    }

    private static void check(boolean fact, String otherwise) {
        if (!fact) {
            throw new IllegalStateException(otherwise);
        }
    }
}
