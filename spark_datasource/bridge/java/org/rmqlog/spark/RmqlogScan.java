package org.rmqlog.spark;

import java.util.Arrays;
import java.util.Objects;
import java.util.stream.Stream;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.internal.connector.SupportsMetadata;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * One scan on a Python source of its own. It is planned once, when Spark first asks for the
 * partitions or for anything that Python's report says.
 */
public final class RmqlogScan
    implements Scan, Batch, SupportsReportStatistics, SupportsMetadata {
  private final String name;
  private final StructType readSchema;
  private final CaseInsensitiveStringMap options;
  private final PythonScan scan;
  private Batch batch;
  private InputPartition[] partitions;
  private ScanReport report;

  RmqlogScan(String name, StructType readSchema, CaseInsensitiveStringMap options) {
    this.name = name;
    this.readSchema = readSchema;
    this.options = options;
    // No filters here: they are in the options, and Python's own pushdown would need a setting.
    this.scan = new PythonScan(PythonSource.fresh(), name, readSchema, options, new Filter[0]);
  }

  /** Python's report as JSON, or an empty object if it made none. */
  public String report() {
    plan();
    return report.json();
  }

  @Override
  public StructType readSchema() {
    return readSchema;
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    plan();
    return partitions;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    plan();
    return batch.createReaderFactory();
  }

  /** Python's answer: by default Spark would plan the partitions to find out. */
  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return scan.columnarSupportMode();
  }

  @Override
  public String description() {
    plan();
    return RmqlogDataSource.SHORT_NAME + " " + report.description();
  }

  @Override
  public scala.collection.immutable.Map<String, String> getMetaData() {
    plan();
    return scala.collection.immutable.Map.from(CollectionConverters.asScala(report.details()));
  }

  @Override
  public Statistics estimateStatistics() {
    plan();
    return report;
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    plan();
    Stream<CustomMetric> planned = report.metrics().keySet().stream().map(PlanMetric::new);
    return Stream.concat(Arrays.stream(scan.supportedCustomMetrics()), planned)
        .toArray(CustomMetric[]::new);
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    plan();
    return report.metrics().entrySet().stream()
        .map(metric -> new PlanMetric.Value(metric.getKey(), metric.getValue()))
        .toArray(CustomTaskMetric[]::new);
  }

  /** Equal scans give equal rows, so Spark reads once what one query needs twice. */
  @Override
  public boolean equals(Object other) {
    return other instanceof RmqlogScan that
        && name.equals(that.name)
        && readSchema.equals(that.readSchema)
        && options.equals(that.options);
  }

  @Override
  public int hashCode() {
    return Objects.hash(name, readSchema, options);
  }

  private synchronized void plan() {
    if (partitions == null) {
      batch = scan.toBatch();
      InputPartition[] planned = batch.planInputPartitions();
      report = planned.length > 0 && planned[0] instanceof PythonInputPartition first
          ? ScanReport.find(first.pickedPartition())
          : ScanReport.NONE;
      partitions = planned;
    }
  }
}
