// Package envelope says how a [postrider.Message] looks on the wire, in one of
// five formats. Every broker adapter writes and reads them through a [Codec], so
// that a consumer written in any language can read them. [Codec.Decode] finds out
// by looking which one a record has.
//
// # Plain
//
// The payload, untouched, and plain headers beside it:
//
//	header                    value                                   written
//	postrider-id              UUID in canonical text                  always
//	postrider-type            what happened                           unless empty
//	postrider-topic           the message's topic                     where the broker's own name for it differs
//	postrider-key             the unit of order                       unless empty or carried as the broker's own key
//	postrider-version         decimal, 1 ...                          unless 0
//	postrider-schema-version  decimal, 1 ...                          unless 0
//	postrider-time            RFC 3339, UTC, up to nanoseconds        unless zero
//	content-type              media type of the payload               unless empty
//	postrider-generation      decimal, 1 ...                          by the relay, on a message that a person sent again
//	postrider-gap             versions such as 3,5-7                  by the relay, behind a dead letter that was skipped
//	postrider-dataref         where the payload stands               by the relay, on a message without it (package claim)
//	postrider-h-NAME          a user header NAME that is reserved     when NAME is content-type or the broker's own
//	postrider-encoded         names of percent-encoded headers, by comma  where values are lines and one would not fit
//	anything else             a user header, verbatim
//
// Header names are compared by their bytes. Other names that begin with
// "postrider-" are reserved; a reader keeps those it does not know among the
// message's headers.
//
// postrider-generation grows each time a person sends the message again, a dead
// letter or a settled message that is replayed; it may leave out numbers. The id
// stays: an inbox that had it drops it. NATS adds it to Nats-Msg-Id, so that the
// stream does not take the message for the one that it had.
//
// postrider-gap names the versions of the message's key before it that will not
// come by themselves: their dead letters are recorded and the key continued without
// them. The key's next message has it, and each one after that while the dead
// letters stand (of very many runs of versions, the newest). Who applies versions
// one by one takes these for applied; a message that a person sends again after
// all comes late, with a generation. [ParseGap] reads the value.
//
// Kafka carries the key as the record's key and header values as bytes; a message
// without a key has none there, and a payload of no bytes is an empty value, not null,
// which would delete the key from a compacted topic. NATS carries headers as text lines and has no key, so postrider-key is written;
// names that begin with "Nats-" command the server and therefore travel as
// postrider-h-NAME, as do names that are no tokens (RFC 9110), percent-encoded:
// its clients refuse them. A value that is not printable ASCII, or has space at an
// end, travels percent-encoded (as in a URL, a space as %20), and postrider-encoded
// names its header: NATS allows ASCII only, and its Java client ends the connection
// over other bytes. Values in UTF-8, which earlier versions wrote, are still read.
// HTTP is like NATS, but for names, which have no case (capitals travel encoded
// behind postrider-h-).
//
// A record without postrider-id was not written by Postrider. It is readable
// all the same: its id is derived from where it stands (topic, partition and
// offset, or stream and sequence), so that every delivery of it has the same.
//
// # CloudEvents
//
// CloudEvents 1.0 (https://github.com/cloudevents/spec): in binary mode the
// payload untouched and the attributes as headers, by the [Binding] of the broker;
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
// A header that is not fit to be an attribute travels beside the event as in
// [Plain], and so do postrider-topic where the broker's own name differs,
// postrider-generation and postrider-gap, and a key with control characters.
// traceparent and tracestate travel as attributes and beside. What a rule says
// replaces the header of that name. A subject that is the key, and a source that
// is the topic's, come back as nothing.
//
// Read are also events of others (on NATS, as its binding says, with the names of
// headers in any case): attributes without a field become headers
// (source, subject and dataschema as ce-source and so on), an id that is no UUID
// gives one derived from source and id, and stays in ce-id.
//
// In structured mode a payload is written as data where that gives back the same
// bytes, as data_base64 otherwise. So is JSON of a content type other than
// application/json and text/json: the SDKs for Go and Java refuse it as data.
//
// sequence counts within the key: the extension's text has it count within the
// source. A consumer that orders by sequence does so per partitionkey, or the rule
// gives each key a source of its own (source: /orders/{key}).
//
// # Debezium
//
// What Debezium's outbox event router writes with its defaults
// (https://debezium.io/documentation/reference/transformations/outbox-event-router.html):
// the payload untouched, the record's key, and a header id. The route says the
// topic, outbox.event.TOPIC by convention, and as more headers what the router
// would take from additional columns (type:header:eventType). Headers of the
// message travel as in [Plain]; a header id of its own as postrider-h-id. Type,
// version, schema version, content type and time are not carried, and a message
// whose payload stayed in the database is refused. It is read where [Foreign] says so.
//
// # Raw
//
// The payload untouched, content-type, and the message's own headers as in
// [Plain]. Nothing else is carried: neither id, type, version, schema version nor
// time, and the topic and key only as far as they are the broker's own. Readers
// derive the id from the record's place, so a message that is sent twice counts
// twice.
package envelope
