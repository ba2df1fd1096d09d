import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends to `orders` and consumes it with the group `readers` in two namespaces. Each message is given twice: `good` is
 * accepted the second time, `dead` never. Arguments: name servers, `v1` or `v2` (how the client gives its
 * namespace), access key, secret, and how many deliveries to wait for. Prints `NAMESPACE got BODY tried TIMES of TOPIC`.
 */
public final class Namespaces {
    private static final String[] NAMES = {"MQ_INST_1", "MQ_INST_2"};
    private static final long DEADLINE_S = 60;

    public static void main(String[] arguments) throws Exception {
        for (String name : NAMES) {
            AclClientRPCHook hook = new AclClientRPCHook(new SessionCredentials(arguments[2], arguments[3]));
            DefaultMQProducer producer = new DefaultMQProducer("writers", hook);
            in(producer, name, arguments);
            producer.setSendMsgTimeout(20_000);
            producer.start();
            try {
                for (String body : List.of("good", "dead")) {
                    Message message = new Message("orders", (body + " of " + name).getBytes(StandardCharsets.UTF_8));
                    System.out.println(name + " sent " + producer.send(message).getSendStatus());
                }
            } catch (Exception error) {
                for (Throwable each = error; each != null; each = each.getCause()) {
                    System.out.println(name + " failed " + each.toString().replace('\n', ' '));
                }
            }
        }
        CountDownLatch open = new CountDownLatch(Integer.parseInt(arguments[4]));
        for (String name : NAMES) {
            AclClientRPCHook hook = new AclClientRPCHook(new SessionCredentials(arguments[2], arguments[3]));
            DefaultMQPushConsumer consumer =
                new DefaultMQPushConsumer("readers", hook, new AllocateMessageQueueAveragely());
            in(consumer, name, arguments);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.setMaxReconsumeTimes(1);
            consumer.subscribe("orders", "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                String body = new String(messages.get(0).getBody(), StandardCharsets.UTF_8);
                int tried = messages.get(0).getReconsumeTimes();
                System.out.println(name + " got " + body + " tried " + tried + " of " + messages.get(0).getTopic());
                open.countDown();
                boolean accepted = body.startsWith("good") && tried == 1;
                return accepted ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            consumer.start();
        }
        open.await(DEADLINE_S, TimeUnit.SECONDS);
        System.out.println("ready");
        System.in.read();
        System.exit(0);
    }

    private static void in(ClientConfig client, String name, String[] arguments) {
        client.setNamesrvAddr(arguments[0]);
        client.setInstanceName(name);
        if (arguments[1].equals("v1")) {
            client.setNamespace(name);
        } else {
            client.setNamespaceV2(name);
        }
    }
}
