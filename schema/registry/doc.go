// Package registry finds the ids of schemas in a registry with Confluent's API, for
// routes of the format confluent:
//
//	reg, err := registry.Open("https://registry.internal:8081", nil)
//	sink, err := kafkabroker.Open(url, &kafkabroker.SinkOptions{Route: reg.Router(table.Route)})
//	relay.New(store, reg.Sink(sink), &relay.Options{Route: table.Route})
//
// The router adds a cached id to each message and does no I/O. The sink asks the registry
// for the ids that the router did not have, and delivers those messages again. Nothing
// is ever registered here but by [Client.Register], which is for deploys.
package registry
