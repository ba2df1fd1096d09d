// What RocketMQ's client for Go can do with a server, one scenario after the other. Arguments: name server, then the
// scenarios to run (none: all). Prints `NAME ok` or `NAME failed: REASON` for each and ends with status 0. With
// ACCESS_KEY and SECRET_KEY in the environment, every client signs its requests.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	count    = 40
	deadline = 60 * time.Second
	early    = 50 * time.Millisecond
)

type message struct {
	body  string
	times int32
	queue int
	at    time.Time
	ext   *primitive.MessageExt
}

type handler func(received message) consumer.ConsumeResult

var (
	servers     []string
	credentials primitive.Credentials
	background  = context.Background()
	sender      rocketmq.Producer
	scenarios   = []struct {
		name string
		run  func(topic string) error
	}{
		{"sync", sync_}, {"async", async}, {"oneway", oneway}, {"batch", batch}, {"orderly", orderly},
		{"delay_level", delayLevel}, {"delay_ms", delayMs}, {"tags", tags}, {"sql", sql}, {"retry", retry}, {"dead", dead},
		{"pull", pull}, {"transaction", transaction}, {"request_reply", requestReply}, {"large", large},
	}
)

func main() {
	rlog.SetLogLevel("fatal")
	servers = []string{os.Args[1]}
	credentials = primitive.Credentials{AccessKey: os.Getenv("ACCESS_KEY"), SecretKey: os.Getenv("SECRET_KEY")}
	made, err := rocketmq.NewProducer(producerOptions("features_producer")...)
	if err == nil {
		err = made.Start()
	}
	if err != nil {
		fmt.Println("no producer:", err)
		os.Exit(1)
	}
	sender = made
	for _, each := range scenarios {
		if len(os.Args) > 2 && !slices.Contains(os.Args[2:], each.name) {
			continue
		}
		if err := each.run("go_" + each.name); err != nil {
			fmt.Printf("%s failed: %v\n", each.name, err)
		} else {
			fmt.Println(each.name, "ok")
		}
	}
	os.Exit(0)
}

func producerOptions(group string) []producer.Option {
	return []producer.Option{
		producer.WithGroupName(group), producer.WithNameServer(servers), producer.WithCredentials(credentials),
		producer.WithRetry(2), producer.WithSendMsgTimeout(10 * time.Second),
	}
}

func consumerOptions(group string) []consumer.Option {
	return []consumer.Option{
		consumer.WithGroupName(group), consumer.WithNameServer(servers), consumer.WithCredentials(credentials),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
}

func numbered(topic string, number int) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(strconv.Itoa(number)))
	parity := "odd"
	if number%2 == 0 {
		parity = "even"
	}
	made.WithTag(parity).WithKeys([]string{"key-" + strconv.Itoa(number)})
	made.WithProperty("number", strconv.Itoa(number))
	made.WithProperty("parity", parity)
	return made
}

func send(made *primitive.Message) error {
	result, err := sender.SendSync(background, made)
	if err == nil && result.Status != primitive.SendOK {
		err = fmt.Errorf("status %d", result.Status)
	}
	return err
}

func sendNumbers(topic string) error {
	for number := range count {
		if err := send(numbered(topic, number)); err != nil {
			return err
		}
	}
	return nil
}

// consume returns what a new group gets of a topic, in the order of arrival, once `enough` says so.
func consume(
	topic string, selector consumer.MessageSelector, handle handler, enough func([]message) bool, more ...consumer.Option,
) ([]message, error) {
	return consumeWith(append(consumerOptions(topic+"_readers"), more...), topic, selector, handle, enough, 0)
}

// The consumer stays for a time after it got enough: nothing tells it that a message it failed to handle was returned.
func consumeWith(
	options []consumer.Option, topic string, selector consumer.MessageSelector, handle handler,
	enough func([]message) bool, stay time.Duration,
) ([]message, error) {
	client, err := rocketmq.NewPushConsumer(append(options, consumer.WithInstance(topic))...)
	if err != nil {
		return nil, err
	}
	var lock sync.Mutex
	var all []message
	done := make(chan struct{})
	receive := func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		result := consumer.ConsumeSuccess
		for _, each := range batch {
			received := message{string(each.Body), each.ReconsumeTimes, each.Queue.QueueId, time.Now(), each}
			if handle != nil {
				result = handle(received)
			}
			wasEnough := enough(all)
			all = append(all, received)
			if enough(all) && !wasEnough {
				close(done)
			}
		}
		return result, nil
	}
	if err := client.Subscribe(topic, selector, receive); err != nil {
		return nil, err
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	select {
	case <-done:
		time.Sleep(stay)
	case <-time.After(deadline):
		err = errors.New("not everything came")
	}
	_ = client.Shutdown()
	lock.Lock()
	defer lock.Unlock()
	if err != nil {
		err = fmt.Errorf("%w: %d messages", err, len(all))
	}
	return all, err
}

func distinct(received []message) map[string]bool {
	found := map[string]bool{}
	for _, each := range received {
		found[each.body] = true
	}
	return found
}

func atLeast(wanted int) func([]message) bool {
	return func(received []message) bool { return len(distinct(received)) >= wanted }
}

func expectNumbers(topic string, selector consumer.MessageSelector, wanted func(int) bool) error {
	total := 0
	for number := range count {
		if wanted(number) {
			total++
		}
	}
	received, err := consume(topic, selector, nil, atLeast(total))
	if err != nil {
		return err
	}
	for body := range distinct(received) {
		if number, err := strconv.Atoi(body); err != nil || !wanted(number) {
			return fmt.Errorf("%q came too", body)
		}
	}
	return nil
}

func all(int) bool { return true }

func sync_(topic string) error {
	if err := sendNumbers(topic); err != nil {
		return err
	}
	return expectNumbers(topic, consumer.MessageSelector{}, all)
}

func async(topic string) error {
	if err := send(numbered(topic, 0)); err != nil {
		return err
	}
	failures := make(chan error, count)
	for number := 1; number < count; number++ {
		answered := func(_ context.Context, result *primitive.SendResult, err error) { failures <- err }
		if err := sender.SendAsync(background, answered, numbered(topic, number)); err != nil {
			return err
		}
	}
	for number := 1; number < count; number++ {
		if err := <-failures; err != nil {
			return err
		}
	}
	return expectNumbers(topic, consumer.MessageSelector{}, all)
}

func oneway(topic string) error {
	if err := send(numbered(topic, 0)); err != nil {
		return err
	}
	for number := 1; number < count; number++ {
		if err := sender.SendOneWay(background, numbered(topic, number)); err != nil {
			return err
		}
	}
	return expectNumbers(topic, consumer.MessageSelector{}, all)
}

func batch(topic string) error {
	var together []*primitive.Message
	for number := range count {
		together = append(together, numbered(topic, number))
	}
	if _, err := sender.SendSync(background, together...); err != nil {
		return err
	}
	return expectNumbers(topic, consumer.MessageSelector{}, all)
}

func orderly(topic string) error {
	options := append(
		producerOptions(topic+"_producer"), producer.WithQueueSelector(producer.NewHashQueueSelector()),
		producer.WithInstanceName(topic+"_producer"),
	)
	client, err := rocketmq.NewProducer(options...)
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		return err
	}
	defer client.Shutdown()
	for number := range count {
		made := numbered(topic, number)
		made.WithShardingKey("device-" + strconv.Itoa(number%4))
		if _, err := client.SendSync(background, made); err != nil {
			return err
		}
	}
	received, err := consume(topic, consumer.MessageSelector{}, nil, atLeast(count), consumer.WithConsumerOrder(true))
	if err != nil {
		return err
	}
	last := map[string]int{}
	for _, each := range received {
		number, key := each.ext.GetProperty("number"), each.ext.GetShardingKey()
		value, _ := strconv.Atoi(number)
		if before, known := last[key]; known && value <= before {
			return fmt.Errorf("%d came after %d", value, before)
		}
		last[key] = value
	}
	return nil
}

func delayed(topic string, made *primitive.Message, due time.Time) error {
	if err := send(made); err != nil {
		return err
	}
	received, err := consume(topic, consumer.MessageSelector{}, nil, atLeast(1))
	if err != nil {
		return err
	}
	if at := received[0].at; at.Before(due.Add(-early)) {
		return fmt.Errorf("%v too early", due.Sub(at))
	}
	return nil
}

func delayLevel(topic string) error {
	return delayed(topic, numbered(topic, 1).WithDelayTimeLevel(2), time.Now().Add(5*time.Second))
}

func delayMs(topic string) error {
	due := time.Now().Add(2500 * time.Millisecond)
	return delayed(topic, numbered(topic, 1).WithDelayTimestamp(due), due)
}

func even(number int) bool { return number%2 == 0 }

func tags(topic string) error {
	if err := sendNumbers(topic); err != nil {
		return err
	}
	return expectNumbers(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "even || other"}, even)
}

func sql(topic string) error {
	if err := sendNumbers(topic); err != nil {
		return err
	}
	expression := "number >= 10 AND parity = 'even'"
	wanted := func(number int) bool { return number >= 10 && even(number) }
	return expectNumbers(topic, consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}, wanted)
}

func retry(topic string) error {
	if err := send(numbered(topic, 1)); err != nil {
		return err
	}
	later := func(received message) consumer.ConsumeResult {
		if received.times == 0 {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	}
	repeated := func(received []message) bool { return len(received) >= 2 }
	received, err := consume(topic, consumer.MessageSelector{}, later, repeated)
	if err != nil {
		return err
	}
	if received[1].times != 1 || received[1].body != received[0].body {
		return fmt.Errorf("repeat %d of %q", received[1].times, received[1].body)
	}
	return nil
}

// What always fails is delivered as often as the group allows; the test looks for the dead letter.
func dead(topic string) error {
	if err := send(numbered(topic, 1)); err != nil {
		return err
	}
	failed := func(message) consumer.ConsumeResult { return consumer.ConsumeRetryLater }
	often := func(received []message) bool { return len(received) >= 2 }
	options := append(consumerOptions(topic+"_readers"), consumer.WithMaxReconsumeTimes(1))
	received, err := consumeWith(options, topic, consumer.MessageSelector{}, failed, often, 3*time.Second)
	if err == nil && (received[0].times != 0 || received[1].times != 1) {
		err = fmt.Errorf("repeats %d and %d", received[0].times, received[1].times)
	}
	return err
}

func pull(topic string) error {
	if err := sendNumbers(topic); err != nil {
		return err
	}
	client, err := rocketmq.NewPullConsumer(consumerOptions(topic + "_readers")...)
	if err != nil {
		return err
	}
	if err := client.Subscribe(topic, consumer.MessageSelector{}); err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	defer client.Shutdown()
	queues, err := client.GetTopicRouteInfo(topic)
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, queue := range queues {
		for offset := int64(0); ; {
			result, err := client.PullFrom(background, queue, offset, 7)
			if err != nil {
				return err
			}
			if result.Status != primitive.PullFound {
				break
			}
			for _, each := range result.GetMessageExts() {
				found[string(each.Body)] = true
			}
			offset = result.NextBeginOffset
		}
	}
	if len(found) != count {
		return fmt.Errorf("%d messages pulled", len(found))
	}
	return nil
}

type outcomes struct{}

func (outcomes) ExecuteLocalTransaction(made *primitive.Message) primitive.LocalTransactionState {
	switch made.GetProperty("outcome") {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnkonwnState
}

func (outcomes) CheckLocalTransaction(*primitive.MessageExt) primitive.LocalTransactionState {
	return primitive.CommitMessageState
}

func transaction(topic string) error {
	options := append(producerOptions(topic+"_producer"), producer.WithInstanceName(topic+"_producer"))
	client, err := rocketmq.NewTransactionProducer(outcomes{}, options...)
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		return err
	}
	defer client.Shutdown()
	for _, outcome := range []string{"rollback", "unknown", "commit"} {
		made := primitive.NewMessage(topic, []byte(outcome))
		made.WithProperty("outcome", outcome)
		if _, err := client.SendMessageInTransaction(background, made); err != nil {
			return err
		}
	}
	received, err := consume(topic, consumer.MessageSelector{}, nil, atLeast(2))
	if err != nil {
		return err
	}
	if distinct(received)["rollback"] {
		return errors.New("a message that was rolled back came")
	}
	return nil
}

func requestReply(topic string) error {
	if err := send(numbered(topic, 0)); err != nil { // makes the topic, so that its reader finds it
		return err
	}
	answerer, err := rocketmq.NewPushConsumer(append(consumerOptions(topic+"_service"), consumer.WithInstance(topic))...)
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	var once sync.Once
	answer := func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, each := range batch {
			once.Do(func() { close(ready) })
			if each.GetProperty(primitive.PropertyCorrelationID) == "" {
				continue
			}
			reply, err := consumer.CreateReplyMessage(each, nil)
			if err == nil {
				reply.Body = []byte("answer to " + string(each.Body)) // the client's own call leaves the body out
				_, _ = sender.SendSync(background, reply)
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := answerer.Subscribe(topic, consumer.MessageSelector{}, answer); err != nil {
		return err
	}
	if err := answerer.Start(); err != nil {
		return err
	}
	defer answerer.Shutdown()
	select {
	case <-ready:
	case <-time.After(deadline):
		return errors.New("the service got nothing")
	}
	asker, err := rocketmq.NewProducer(
		append(producerOptions(topic+"_producer"), producer.WithInstanceName(topic+"_producer"))...,
	)
	if err == nil {
		err = asker.Start()
	}
	if err != nil {
		return err
	}
	defer asker.Shutdown()
	// The client tells brokers who it is up to half a minute after its start; before that nobody can answer it.
	var result *primitive.Message
	for end := time.Now().Add(deadline); ; {
		result, err = asker.Request(background, 5*time.Second, primitive.NewMessage(topic, []byte("question")))
		if err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		return err
	}
	if string(result.Body) != "answer to question" {
		return fmt.Errorf("answered %q", result.Body)
	}
	return nil
}

func large(topic string) error {
	body := make([]byte, 1<<20)
	for at := range body {
		body[at] = byte(at * at >> 8)
	}
	if err := send(primitive.NewMessage(topic, body)); err != nil {
		return err
	}
	received, err := consume(topic, consumer.MessageSelector{}, nil, atLeast(1))
	if err == nil && received[0].body != string(body) {
		err = errors.New("it came back with other bytes")
	}
	return err
}
