module github.com/postrider/postrider/broker/rabbitbroker

go 1.26.0

require (
	github.com/postrider/postrider v0.0.0
	github.com/rabbitmq/amqp091-go v1.16.0
)
