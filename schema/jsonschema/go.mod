module github.com/postrider/postrider/schema/jsonschema

go 1.25.0

require (
	github.com/postrider/postrider v0.0.0
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3
)

require golang.org/x/text v0.41.0 // indirect
