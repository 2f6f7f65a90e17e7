module github.com/postrider/postrider/schema/avro

go 1.26.0

require (
	github.com/postrider/postrider v0.0.0
	github.com/twmb/avro v1.9.0
)
