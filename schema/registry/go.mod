module github.com/postrider/postrider/schema/registry

go 1.26.0

require (
	github.com/bufbuild/protocompile v0.14.1
	github.com/postrider/postrider v0.0.0
	github.com/twmb/franz-go/pkg/sr v1.8.0
)

require google.golang.org/protobuf v1.34.2 // indirect
