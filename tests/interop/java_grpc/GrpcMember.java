import java.nio.charset.StandardCharsets;
import java.util.Collections;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;

/**
 * A member of a group until its input ends. Arguments: endpoint, topic, group. Prints `started`, and `consumed BODY` for each message;
 * a message `fail` it fails to handle.
 */
public final class GrpcMember {
    private GrpcMember() {
    }

    public static void main(String[] arguments) throws Exception {
        ClientServiceProvider.loadService().newPushConsumerBuilder()
            .setClientConfiguration(ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build())
            .setConsumerGroup(arguments[2])
            .setSubscriptionExpressions(Collections.singletonMap(arguments[1], FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
                System.out.println("consumed " + body);
                System.out.flush();
                return body.equals("fail") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build();
        System.out.println("started");
        System.out.flush();
        System.in.read();
        System.exit(0);
    }
}
