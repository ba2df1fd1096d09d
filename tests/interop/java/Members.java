import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer of group `writers` and a consumer of group `readers`, for tools to look at: arguments are the name servers
 * and a topic. Sends ten messages with trace, prints `member CLIENT UNIQUE-ID OFFSET-ID` once all are consumed, and stays
 * until its standard input ends.
 */
public final class Members {
    private static final int MESSAGES = 10;

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("writers", null, true, null);
        producer.setNamesrvAddr(arguments[0]);
        producer.start();
        java.util.concurrent.CountDownLatch left = new java.util.concurrent.CountDownLatch(MESSAGES);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("readers", null,
            new org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely(), true, null);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setInstanceName("member");
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> left.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        SendResult sent = null;
        for (int number = 0; number < MESSAGES; number++) {
            sent = producer.send(new Message(arguments[1], "tag", "key-" + number, ("body " + number).getBytes()));
        }
        consumer.setConsumeFromWhere(org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.start();
        if (!left.await(60, java.util.concurrent.TimeUnit.SECONDS)) {
            System.out.println("consumed " + (MESSAGES - left.getCount()));
            System.exit(1);
        }
        String client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
        System.out.println("member " + client + " " + sent.getMsgId() + " " + sent.getOffsetMsgId());
        while (System.in.read() >= 0) {
            continue;
        }
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }
}
