package org.rmqlog.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** A number of Python's report on Spark's SQL page. */
public final class PlanMetric extends CustomSumMetric {
  private final String name;

  /** For Spark's SQL page, which makes one by reflection only to add values up. */
  public PlanMetric() {
    this("");
  }

  PlanMetric(String name) {
    this.name = name;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String description() {
    return name;
  }

  /** The value of one metric, known when the scan is planned. */
  record Value(String name, long value) implements CustomTaskMetric {}
}
