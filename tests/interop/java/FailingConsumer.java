import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A consumer under an access key that handles messages `good…` and fails all others, until its input ends. Arguments: name servers, topic,
 * group, key, secret, how it consumes (`push`, `orderly`, `pop`, or `commit`: one offset), retries. Prints `delivered BODY RECONSUME_TIMES`
 * for each delivery, and `failed REASON` if a commit is refused.
 */
public final class FailingConsumer {
    private FailingConsumer() {
    }

    public static void main(String[] arguments) throws Exception {
        AclClientRPCHook hook = new AclClientRPCHook(new SessionCredentials(arguments[3], arguments[4]));
        if (arguments[5].equals("commit")) {
            commit(arguments[0], arguments[1], arguments[2], hook);
            System.exit(0);
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2], hook);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setPollNameServerInterval(1_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(Integer.parseInt(arguments[6]));
        consumer.setSuspendCurrentQueueTimeMillis(500);
        consumer.setClientRebalance(!arguments[5].equals("pop"));
        consumer.subscribe(arguments[1], "*");
        if (arguments[5].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> handled(messages)
                ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                return handled(messages)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        System.in.read();
        consumer.shutdown();
        System.exit(0);
    }

    private static boolean handled(List<MessageExt> messages) {
        boolean all = true;
        for (MessageExt message : messages) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            System.out.println("delivered " + body + " " + message.getReconsumeTimes());
            all &= body.startsWith("good");
        }
        System.out.flush();
        return all;
    }

    private static void commit(String nameServers, String topic, String group, AclClientRPCHook hook) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, hook);
        consumer.setNamesrvAddr(nameServers);
        consumer.start();
        try {
            MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
            consumer.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, 0, false);
            System.out.println("delivered");
        } catch (Exception refused) {
            System.out.println("failed " + refused.getMessage().replace('\n', ' '));
        }
        System.out.flush();
    }
}
