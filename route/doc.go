// Package route routes messages by rules, which set the destination, the broker's own
// key, the wire format and further headers.
//
//	table, err := route.New([]route.Rule{
//		{Match: route.Match{Topic: "billing.*"}, Topic: "finance.{topic}", Format: envelope.CloudEvents},
//		{Topic: "{topic}"},
//	})
//	sink, err := kafkabroker.NewSink(client, &kafkabroker.SinkOptions{Route: table.Route})
//
// The first matching rule counts. A message without a matching rule is rejected
// with the code NO_ROUTE and kept as a dead letter, never dropped. A table is
// checked when it is made: errors that can be detected without a message are
// reported then, as [*Error].
//
// A pattern is a text in which * matches any characters, or none. A template
// is a text with these placeholders:
//
//	{topic} {key} {type} {id} {content_type} {version} {schema_version}
//	{header:NAME}      the message's header of that name
//	{NAME|TEXT}        TEXT if the message's value is empty; TEXT may be empty
//	{{ }}              braces
//
// If the message's value is empty and the template has no TEXT, the message
// is rejected: nobody expects a topic "events." for a message without type.
// Only {key} may be empty in a rule's key.
//
// Order is kept per the message's key, whatever a rule's key is. But consumers
// see a key's messages in one order only if all of them go
// to one partition: a rule's key should be the same for all messages of one key.
package route
