"""What a scope measures in MLflow: mlflow ui --backend-store-uri sqlite:///mlflow.db."""

import mlflow
import torch

import normscope as ns
from normscope.integrations import LoggedScope
from normscope.integrations.mlflow import MLflowLogger

mlflow.set_tracking_uri("sqlite:///mlflow.db")
x, y = ns.data.load("digits").train
model = ns.models.build("fully_connected", input_shape=(1, 8, 8), width=100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scope = ns.Scope(model, "cross_entropy", optimizer, probes="economy", every=5)
with mlflow.start_run(run_name="batch"), LoggedScope(scope, MLflowLogger()) as logged:
    for batch in torch.randperm(len(x))[:1280].split(64):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        logged.step(x[batch], y[batch])  # before the update
        optimizer.step()
