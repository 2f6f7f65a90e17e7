// Package envelope defines the wire formats of a [postrider.Message]; there are
// six. Every broker adapter encodes and decodes them through a [Codec], so
// that consumers in any language can read them. [Codec.Decode] recognises
// the format of a record.
//
// # Plain
//
// The unchanged payload with plain headers:
//
//	header                    value                                   written
//	postrider-id              UUID in canonical text                  always
//	postrider-type            what happened                           unless empty
//	postrider-topic           the message's topic                     if the broker's own name for it differs
//	postrider-key             the unit of order                       unless empty or carried as the broker's own key
//	postrider-version         decimal, 1 ...                          unless 0
//	postrider-schema-version  decimal, 1 ...                          unless 0
//	postrider-time            RFC 3339, UTC, up to nanoseconds        unless zero
//	content-type              media type of the payload               unless empty
//	postrider-generation      decimal, 1 ...                          by the relay, on a message that a person sent again
//	postrider-gap             versions such as 3,5-7                  by the relay, behind a dead letter that was skipped
//	postrider-dataref         reference of the payload                by the relay, on a message without it (package claim)
//	postrider-frame           decimal: bytes before the payload       in the format Confluent; 0 where a payload of CloudEvents or Debezium could be taken for framed
//	postrider-h-NAME          a user header NAME that is reserved     when NAME is content-type or the broker's own
//	postrider-encoded         names of percent-encoded headers, by comma  if values are lines and one would not fit
//	anything else             a user header, verbatim
//
// Header names are compared by their bytes. Other names that begin with
// "postrider-" are reserved; a reader keeps those it does not know among the
// message's headers.
//
// postrider-generation grows each time a person retries a dead letter or replays a
// settled message; it may skip numbers. The id stays the same: an inbox that has it drops
// the message. NATS adds the generation to Nats-Msg-Id, so
// that the stream does not drop the message as a duplicate.
//
// postrider-gap names skipped versions of the message's key before it:
// their dead letters are recorded and the key continued without
// them. The key's next message has it, and each one after that until the dead
// letters are gone (of very many runs of versions, the newest). A consumer that
// applies versions one by one counts these as applied; a message that a person retries
// after all arrives late, with a generation. [ParseGap] reads the value.
//
// Kafka carries the key as the record's key and header values as bytes. The record of a
// message without a key has a null key. An empty payload is an empty value, not null,
// which would delete the key from a compacted topic.
//
// NATS carries headers as text lines and has no key, so postrider-key is written.
// Names that begin with "Nats-" have a meaning for the server and travel as
// postrider-h-NAME. So do names that are not tokens (RFC 9110), percent-encoded,
// because its clients refuse them. A value that is not printable ASCII, or has space at an
// end, travels percent-encoded (as in a URL, a space as %20), and postrider-encoded
// names its header: NATS allows ASCII only, and its Java client ends the connection
// over other bytes. Values in UTF-8, which earlier versions wrote, are still read.
// HTTP is like NATS, except that names have no case (capitals travel encoded
// behind postrider-h-).
//
// A record without postrider-id was not written by Postrider. It is still readable:
// its id is derived from its position (topic, partition and offset, or
// stream and sequence), so that every delivery of it has the same id.
//
// # CloudEvents
//
// CloudEvents 1.0 (https://github.com/cloudevents/spec): in binary mode the
// unchanged payload with the attributes as headers, by the [Binding] of the broker;
// in structured mode one JSON object as the payload, content type
// application/cloudevents+json.
//
//	attribute        of the message
//	id               id
//	source           the rule's, the header ce-source, or "/" and the topic, escaped as in a URL
//	type             the rule's or the type; a message without one is refused
//	subject          the rule's, the header ce-subject, or the key
//	time             time
//	datacontenttype  content type; in binary mode content-type, on NATS ce-datacontenttype
//	dataschema       the rule's or the header ce-dataschema
//	partitionkey     key
//	sequence         version, 19 digits with leading zeros, since sequences are compared as text
//	schemaversion    schema version
//	dataref          the header postrider-dataref
//	any other        a header whose name has 1 to 20 of a-z and 0-9 and no meaning above,
//	                 and whose value is not empty and without control characters
//
// A header that cannot be an attribute travels beside the event as in
// [Plain]. So do postrider-topic if the broker's own name differs,
// postrider-generation and postrider-gap, and a key with control characters.
// traceparent and tracestate travel both as attributes and as headers. A rule's value
// replaces the header of that name. A subject equal to the key, and a source
// derived from the topic, are dropped when decoding.
//
// Events of other writers are read too (on NATS, by its binding, with the names of
// headers in any case). Attributes without a field become headers
// (source, subject and dataschema as ce-source and so on). For an id that is not a UUID
// the message's id is derived from source and id, and ce-id has the original.
//
// In structured mode a payload is written as data if that preserves its
// bytes, and as data_base64 otherwise. JSON of a content type other than
// application/json and text/json is written as data_base64 too, because the SDKs for Go
// and Java refuse it as data.
//
// sequence counts within the key, although the extension is defined within the
// source. A consumer that orders by sequence must do so per partitionkey, or the rule
// must give each key a source of its own (source: /orders/{key}).
//
// # Debezium
//
// The format of Debezium's outbox event router with its defaults
// (https://debezium.io/documentation/reference/transformations/outbox-event-router.html):
// the unchanged payload, the record's key, and a header id. The route sets the
// topic, outbox.event.TOPIC by convention, and further headers that the router
// would take from additional columns (type:header:eventType). Headers of the
// message travel as in [Plain]; a header id of its own as postrider-h-id. So does the
// schema version, which consumers of the router ignore. Type,
// version, content type and time are not carried, and a message
// whose payload stayed in the database is refused. Decoding it needs [Foreign], whose
// SchemaVersion names the header in which the router itself writes the version.
//
// # Raw
//
// The unchanged payload, content-type, and the message's own headers as in
// [Plain]. Nothing else is carried: neither id, type, version, schema version nor
// time, and the topic and key only as far as they are the broker's own. Readers
// derive the id from the record's position, so a message that is sent twice counts
// twice.
//
// # Confluent
//
// The format of the serializers of Confluent's schema registry, beside the headers of
// [Plain]: before the payload stand a zero byte and the schema's id in four bytes, and of
// a Protobuf schema the index of the message. Or the schema's GUID is in the header
// __value_schema_id, and the payload is unchanged. postrider-frame says how many
// bytes a reader of ours removes. Module schema/registry finds the ids.
package envelope
