// Package route says what becomes of messages by rules: which destination, which
// key for the broker, which wire format, which headers besides.
//
//	table, err := route.New([]route.Rule{
//		{Match: route.Match{Topic: "billing.*"}, Topic: "finance.{topic}", Format: envelope.CloudEvents},
//		{Topic: "{topic}"},
//	})
//	sink, err := kafkabroker.NewSink(client, &kafkabroker.SinkOptions{Route: table.Route})
//
// The first rule that matches counts. A message that none matches is rejected
// with the code NO_ROUTE and kept as a dead letter, never dropped. A table is
// checked when it is made: what can be known to be wrong without a message is an
// [*Error] then.
//
// A pattern is a text in which * stands for any characters, also none. A template
// is a text with these in it:
//
//	{topic} {key} {type} {id} {content_type} {version} {schema_version}
//	{header:NAME}      the message's header of that name
//	{NAME|TEXT}        TEXT where the message has nothing there; TEXT may be empty
//	{{ }}              braces
//
// Where a message has nothing and the template has no TEXT for that, the message
// is rejected: a topic events. for a message without type would be somebody's
// surprise. Only {key} may be empty in a rule's key.
//
// Order is kept per the message's key, whatever the rule makes of it. But who
// reads the broker sees a key's messages in one order only where all of them go
// to one place: let a rule's key be the same for all messages of one key.
package route
