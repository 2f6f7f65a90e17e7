package open

import (
	"github.com/postrider/postrider/broker/awsbroker"
)

func sqsKind() kind {
	return kind{
		schemes: []string{"sqs"}, form: "sqs://REGION", sink: openSQS, source: openSQSSource,
		params: "  sqs://[KEYID:SECRET@]REGION   ?type=fifo|standard&prefix=TEXT&account=ID&role=ARN&profile=NAME&endpoint=URL&window=N\n" +
			"      &max-message-bytes=N\n",
	}
}

func snsKind() kind {
	return kind{
		schemes: []string{"sns"}, form: "sns://REGION", sink: openSQS,
		params: "  sns://[KEYID:SECRET@]REGION   ?account=ID&type=fifo|standard&prefix=TEXT&role=ARN&profile=NAME&endpoint=URL&window=N\n" +
			"      &max-message-bytes=N\n",
	}
}

// openSQS opens SNS too: the URL's scheme decides.
func openSQS(set *Settings, _ string) (*Publisher, error) {
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	sink, err := awsbroker.Open(set.Broker, &awsbroker.SinkOptions{Route: router})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Publisher{Sink: sink, Close: sink.Close}, nil
}

func openSQSSource(set *Settings, _, topic string) (*Receiver, error) {
	src, err := awsbroker.OpenSource(set.Broker, &awsbroker.SourceOptions{Queue: topic})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Receiver{Source: src, Close: src.Close}, nil
}
