package org.rmqlog.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A store as a catalog: topics are tables. Every setting of the catalog is a default option of its
 * tables. A namespace is {@code topics} (which may be left out) or {@code metadata}, with a store's
 * path in front of it when that is not the catalog's own.
 */
public final class RmqlogCatalog implements TableCatalog, SupportsNamespaces {
  // Topics have a namespace of their own because Spark's listTables() cannot name tables without.
  private static final String TOPICS = "topics";
  private static final String METADATA = "metadata";
  private static final List<String> KINDS = List.of(TOPICS, METADATA);

  private String name;
  private Map<String, String> defaults;

  @Override
  public void initialize(String catalogName, CaseInsensitiveStringMap settings) {
    name = catalogName;
    defaults = PythonSource.fromUser(settings);
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String[] defaultNamespace() {
    return new String[] {TOPICS};
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    Place place = place(namespace);
    Map<String, String> question = place.options();
    question.put(PythonSource.CATALOG, place.isMetadata() ? "metadata" : "tables");
    return Arrays.stream(PythonSource.ask(question).fieldNames())
        .map(table -> Identifier.of(place.namespace(), table))
        .toArray(Identifier[]::new);
  }

  @Override
  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    return load(identifier, Map.of());
  }

  @Override
  public Table loadTable(Identifier identifier, String version) throws NoSuchTableException {
    return load(identifier, Map.of("versionAsOf", version));
  }

  @Override
  public Table loadTable(Identifier identifier, long timestamp) throws NoSuchTableException {
    return load(identifier, Map.of(PythonSource.TIMESTAMP_AS_OF, Long.toString(timestamp)));
  }

  @Override
  public String[][] listNamespaces() {
    return new String[][] {{TOPICS}, {METADATA}};
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    place(namespace);
    return new String[0][];
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace)
      throws NoSuchNamespaceException {
    place(namespace);
    return Map.of();
  }

  private Table load(Identifier identifier, Map<String, String> timeTravel)
      throws NoSuchTableException {
    Place place;
    try {
      place = place(identifier.namespace());
    } catch (NoSuchNamespaceException missing) {
      throw new NoSuchTableException(identifier);
    }
    Map<String, String> options = place.options();
    options.put(place.isMetadata() ? "metadata" : "topic", identifier.name());
    options.putAll(timeTravel);
    Map<String, String> question = PythonSource.copy(options);
    question.put(PythonSource.CATALOG, "table");
    StructType schema = PythonSource.ask(question);
    if (schema.isEmpty()) {
      throw new NoSuchTableException(identifier);
    }
    return new RmqlogTable(
        name + "." + identifier, schema, new CaseInsensitiveStringMap(options));
  }

  /**
   * Where a namespace points.
   *
   * @param namespace its full form, with topics or metadata at the end
   * @param options the catalog's defaults, with the path that the namespace names
   */
  private record Place(String[] namespace, Map<String, String> options) {
    boolean isMetadata() {
      return namespace[namespace.length - 1].equals(METADATA);
    }
  }

  private Place place(String[] namespace) throws NoSuchNamespaceException {
    List<String> parts = new ArrayList<>(List.of(namespace));
    if (parts.isEmpty() || !KINDS.contains(parts.get(parts.size() - 1))) {
      parts.add(TOPICS);
    }
    if (parts.size() > 2) {
      throw new NoSuchNamespaceException(namespace);
    }
    Map<String, String> options = PythonSource.copy(defaults);
    if (parts.size() == 2) {
      options.put("path", parts.get(0));
    }
    return new Place(parts.toArray(new String[0]), options);
  }

  // Topics come and go by writing to a store or by the broker's own tools.

  @Override
  public Table createTable(Identifier identifier, TableInfo definition) {
    throw unsupported("CREATE TABLE: append to a topic by format(\"rmqlog\") to create it");
  }

  @Override
  public Table alterTable(Identifier identifier, TableChange... changes) {
    throw unsupported("ALTER TABLE");
  }

  @Override
  public boolean dropTable(Identifier identifier) {
    throw unsupported("DROP TABLE");
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw unsupported("RENAME TABLE");
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    throw unsupported("CREATE NAMESPACE");
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw unsupported("ALTER NAMESPACE");
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    throw unsupported("DROP NAMESPACE");
  }

  private static UnsupportedOperationException unsupported(String what) {
    return new UnsupportedOperationException("a catalog of rmqlog does not support " + what);
  }
}
