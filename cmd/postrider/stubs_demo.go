package main

import "github.com/spf13/cobra"

func (a *app) demoCommand() *cobra.Command      { return &cobra.Command{Use: "demo", Hidden: true} }
func (a *app) ordersCommand() *cobra.Command    { return &cobra.Command{Use: "x1", Hidden: true} }
func (a *app) warehouseCommand() *cobra.Command { return &cobra.Command{Use: "x2", Hidden: true} }
