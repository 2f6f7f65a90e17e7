package open

import (
	"sync"

	"github.com/redis/go-redis/v9/logging"

	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

func redisKind() kind {
	return kind{
		schemes: []string{"redis", "rediss"}, form: "redis://HOST:PORT", sink: openRedis, source: openRedisSource,
		params: "  redis://[USER:PASSWORD@]HOST:PORT,...[/DB]  (rediss:// with TLS)  ?stream-prefix=TEXT&partitions=N\n" +
			"      &create=on|off&dedup=on|off&maxlen=N|~N&max-age=DURATION&replicas=N&synced=true\n" +
			"      &durable=any|everysec|always&max-message=BYTES&timeout=DURATION\n",
	}
}

// quietRedis keeps the client from printing to stderr what its errors say anyway.
var quietRedis = sync.OnceFunc(logging.Disable)

func openRedis(set *Settings, _ string) (*Publisher, error) {
	quietRedis()
	router, err := set.Router()
	if err != nil {
		return nil, err
	}
	sink, err := redisbroker.Open(set.Broker, &redisbroker.SinkOptions{Route: router})
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.Broker), err)
	}
	return &Publisher{Sink: sink, Close: sink.Close}, nil
}

func openRedisSource(set *Settings, consumer, topic string) (*Receiver, error) {
	quietRedis()
	src, err := redisbroker.OpenSource(set.Broker, topic, redisbroker.SourceOptions{Group: consumer})
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.Broker), err)
	}
	return &Receiver{Source: src, Close: src.Close}, nil
}
