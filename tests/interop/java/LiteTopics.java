import java.util.Collections;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.lite.LiteSubscriptionAction;
import org.apache.rocketmq.common.lite.LiteSubscriptionDTO;
import org.apache.rocketmq.common.lite.OffsetOption;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.body.LiteSubscriptionCtlRequestBody;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.LiteSubscriptionCtlRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopLiteMessageRequestHeader;

/**
 * Subscribes to the lite topic `s-1` of `agents`, sends two messages to it, and pops and acknowledges them one by one.
 */
public final class LiteTopics {
    private static final long TIMEOUT_MS = 10_000;

    private LiteTopics() {
    }

    public static void main(String[] arguments) throws Exception {
        String address = arguments[0];
        DefaultMQProducer producer = new DefaultMQProducer("lite_producers");
        producer.setNamesrvAddr(address);
        producer.start();
        MQClientAPIImpl api = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        System.out.println("subscribed " + subscribe(api, address));
        for (int number = 0; number < 2; number++) {
            Message message = new Message("agents", ("body " + number).getBytes());
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_LITE_TOPIC, "s-1");
            System.out.println("sent " + producer.send(message).getSendStatus());
        }
        for (int number = 0; number < 2; number++) {
            MessageExt message = pop(api, address);
            String liteTopic = message.getProperty(MessageConst.PROPERTY_LITE_TOPIC);
            System.out.println("popped " + new String(message.getBody()) + " of " + liteTopic + " at "
                + message.getQueueOffset() + ", tried " + message.getReconsumeTimes());
            System.out.println("acknowledged " + acknowledge(api, address, message, liteTopic));
        }
        System.out.println("ready");
        System.in.read();
        producer.shutdown();
        System.exit(0);
    }

    private static int subscribe(MQClientAPIImpl api, String address) throws Exception {
        LiteSubscriptionDTO change = new LiteSubscriptionDTO();
        change.setAction(LiteSubscriptionAction.PARTIAL_ADD).setClientId("java-1").setGroup("workers");
        change.setTopic("agents").setLiteTopicSet(Collections.singleton("s-1")).setVersion(1);
        change.setOffsetOption(new OffsetOption(OffsetOption.Type.POLICY, OffsetOption.POLICY_MIN_VALUE));
        LiteSubscriptionCtlRequestBody body = new LiteSubscriptionCtlRequestBody();
        body.setSubscriptionSet(Collections.singleton(change));
        RemotingCommand request =
            RemotingCommand.createRequestCommand(RequestCode.LITE_SUBSCRIPTION_CTL, new LiteSubscriptionCtlRequestHeader());
        request.setBody(body.encode());
        return api.getRemotingClient().invokeSync(address, request, TIMEOUT_MS).getCode();
    }

    private static MessageExt pop(MQClientAPIImpl api, String address) throws Exception {
        PopLiteMessageRequestHeader header = new PopLiteMessageRequestHeader();
        header.setClientId("java-1");
        header.setConsumerGroup("workers");
        header.setTopic("agents");
        header.setMaxMsgNum(1);
        header.setInvisibleTime(30_000);
        header.setPollTime(5_000);
        header.setBornTime(System.currentTimeMillis());
        header.setAttemptId("attempt-" + System.nanoTime());
        CompletableFuture<PopResult> found = new CompletableFuture<>();
        api.popLiteMessageAsync("broker-a", address, header, TIMEOUT_MS, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                found.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                found.completeExceptionally(error);
            }
        });
        return found.get(TIMEOUT_MS, TimeUnit.MILLISECONDS).getMsgFoundList().get(0);
    }

    private static Object acknowledge(MQClientAPIImpl api, String address, MessageExt message, String liteTopic)
        throws Exception {
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup("workers");
        header.setTopic("agents");
        header.setQueueId(0);
        header.setOffset(message.getQueueOffset());
        header.setExtraInfo(message.getProperty(MessageConst.PROPERTY_POP_CK));
        header.setLiteTopic(liteTopic);
        CompletableFuture<AckResult> done = new CompletableFuture<>();
        api.ackLiteMessageAsync(address, TIMEOUT_MS, new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                done.complete(result);
            }

            @Override
            public void onException(Throwable error) {
                done.completeExceptionally(error);
            }
        }, header);
        return done.get(TIMEOUT_MS, TimeUnit.MILLISECONDS).getStatus();
    }
}
