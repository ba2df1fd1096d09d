import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A service for requests in the topic `plant`, and requests to MQTT services on `rooms/7/ask`. Arguments: name servers,
 * the most bytes of a message. The answer is `re:` and the request; its user properties `wait-ms` and `answer-bytes`
 * ask for a late or a large one. Each line of input `COUNT RATE TIMEOUT_MS` sends so many requests at so many a second, or
 * without end until the line `stop` when COUNT is 0; then a line with what became of them is printed.
 */
public final class RequestLoad {
    private static volatile boolean stopped;

    private RequestLoad() {
    }

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("request_load");
        producer.setNamesrvAddr(arguments[0]);
        producer.setPollNameServerInterval(1_000);
        producer.setMaxMessageSize(Integer.parseInt(arguments[1]));
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("request_load_services");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setPollNameServerInterval(1_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("plant", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> serve(producer, each));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("started");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            if (line.equals("stop")) {
                stopped = true;
                continue;
            }
            String[] words = line.split(" ");
            stopped = false;
            new Thread(() -> {
                try {
                    ask(producer, Integer.parseInt(words[0]), Integer.parseInt(words[1]), Long.parseLong(words[2]));
                } catch (Exception error) {
                    System.out.println("ended " + error);
                }
            }).start();
        }
        System.exit(0);
    }

    private static void serve(DefaultMQProducer producer, MessageExt request) {
        try {
            String wait = request.getUserProperty("wait-ms");
            if (wait != null) {
                Thread.sleep(Long.parseLong(wait));
            }
            String size = request.getUserProperty("answer-bytes");
            byte[] body = ("re:" + new String(request.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
            Message answer = MessageUtil.createReplyMessage(request, size == null ? body : Arrays.copyOf(body, Integer.parseInt(size)));
            String status = producer.send(answer).getSendStatus().toString();
            if (size != null || wait != null || !status.equals("SEND_OK")) {
                System.out.println("served " + status);
            }
        } catch (Exception error) {
            System.out.println("failed " + error.toString().replace('\n', ' '));
        }
        System.out.flush();
    }

    private static void ask(DefaultMQProducer producer, int count, int perSecond, long timeoutMs) throws Exception {
        AtomicInteger timedOut = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        AtomicInteger wrong = new AtomicInteger();
        AtomicInteger twice = new AtomicInteger();
        ConcurrentHashMap<Integer, Integer> ends = new ConcurrentHashMap<>();
        Queue<Long> tookUs = new ConcurrentLinkedQueue<>();
        long began = System.nanoTime();
        int sent = 0;
        for (; count == 0 ? !stopped : sent < count; sent++) {
            while (System.nanoTime() < began + sent * 1_000_000_000L / perSecond) {
                LockSupport.parkNanos(100_000);
            }
            int number = sent;
            long at = System.nanoTime();
            Message request = new Message("rooms", Integer.toString(number).getBytes(StandardCharsets.UTF_8));
            request.putUserProperty("originMqttTopic", "rooms/7/ask");
            RequestCallback callback = new RequestCallback() {
                @Override
                public void onSuccess(Message answer) {
                    end();
                    tookUs.add((System.nanoTime() - at) / 1_000);
                    if (!new String(answer.getBody(), StandardCharsets.UTF_8).equals("re:" + number)) {
                        wrong.incrementAndGet();
                    }
                    if (number % 100 == 0) {
                        System.out.println("answered " + number);
                        System.out.flush();
                    }
                }

                @Override
                public void onException(Throwable error) {
                    end();
                    (error instanceof RequestTimeoutException ? timedOut : failed).incrementAndGet();
                }

                private void end() {
                    if (ends.merge(number, 1, Integer::sum) > 1) {
                        twice.incrementAndGet();
                    }
                }
            };
            try {
                // request(message, callback, timeout) would call back with null as soon as the request is sent.
                producer.request(request, (queues, message, argument) -> queues.get(number % queues.size()), null, callback, timeoutMs);
            } catch (Exception error) {
                callback.onException(error);
            }
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        long deadline = System.nanoTime() + (timeoutMs + 20_000) * 1_000_000L;
        while (ends.size() < sent && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
        long[] sorted = tookUs.stream().mapToLong(Long::longValue).sorted().toArray();
        System.out.printf(
            "asked {\"sent\": %d, \"per_second\": %.0f, \"answered\": %d, \"timed_out\": %d, \"failed\": %d, \"open\": %d, "
                + "\"wrong\": %d, \"twice\": %d, \"ms_p50\": %.1f, \"ms_p99\": %.1f, \"ms_p999\": %.1f, \"ms_max\": %.1f}%n",
            sent, sent / seconds, sorted.length, timedOut.get(), failed.get(), sent - ends.size(), wrong.get(), twice.get(),
            at(sorted, 0.5), at(sorted, 0.99), at(sorted, 0.999), at(sorted, 1));
        System.out.flush();
    }

    private static double at(long[] sorted, double share) {
        return sorted.length == 0 ? -1 : sorted[(int) Math.min(sorted.length - 1, share * sorted.length)] / 1_000.0;
    }
}
