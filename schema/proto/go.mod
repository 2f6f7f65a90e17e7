module github.com/postrider/postrider/schema/proto

go 1.26.0

require (
	github.com/bufbuild/protocompile v0.14.1
	github.com/postrider/postrider v0.0.0
	google.golang.org/protobuf v1.36.12
)

require golang.org/x/sync v0.24.0 // indirect
