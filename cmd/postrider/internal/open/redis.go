package open

import (
	"sync"

	"github.com/redis/go-redis/v9/logging"

	"github.com/postrider/postrider/broker/redisbroker"
)

func redisKind() kind {
	return kind{
		schemes: []string{"redis", "rediss"}, form: "redis://HOST:PORT", sink: openRedis, source: openRedisSource,
		params: "  redis://[USER:PASSWORD@]HOST:PORT,...[/DB]  (rediss:// with TLS)  ?prefix=TEXT&partitions=N\n" +
			"      &create=on|off&dedup=on|off&maxlen=N|~N&max-age=DURATION&replicas=N&synced=true\n" +
			"      &durable=any|everysec|always&max-message-bytes=N&timeout=DURATION\n",
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
		return nil, unusable(set, err)
	}
	return &Publisher{Sink: sink, Close: sink.Close}, nil
}

func openRedisSource(set *Settings, consumer, topic string) (*Receiver, error) {
	quietRedis()
	src, err := redisbroker.OpenSource(set.Broker, &redisbroker.SourceOptions{Group: consumer, Topics: []string{topic}})
	if err != nil {
		return nil, unusable(set, err)
	}
	return &Receiver{Source: src, Close: src.Close}, nil
}
